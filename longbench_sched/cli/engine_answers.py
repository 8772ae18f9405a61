"""What the engine said before the run, in the form that the run needs: model, clock, facts, a way to make prompts."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longbench_sched.target import Endpoint
from longbench_sched.workload.prompt import PromptMaker

INFO_PATH = "/longbench/info"  # of the embedded engine


@dataclass(frozen=True, slots=True)
class EngineAnswers:
    """What is known of the engine before the first request."""

    model: str
    prompts: PromptMaker
    facts: Mapping[str, Any] = field(default_factory=dict)
    time_scale: float = 1.0
    simulated: bool = False
    findings: tuple[Mapping[str, Any], ...] = ()


def server_lateness_p99_ms(endpoint: Endpoint) -> float | None:
    """How late the embedded engine emitted its tokens, by its own account; None where it cannot be asked any more."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=5)
    try:
        connection.request("GET", endpoint.prefix + INFO_PATH)
        answer = json.loads(connection.getresponse().read())
        late_ms = answer["lateness"]["p99_ms"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()
    return float(late_ms) if isinstance(late_ms, int | float) else None
