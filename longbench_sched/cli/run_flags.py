"""The flags of `run` as the rooms want them; read from the plain values that an experiment stores to be resumed with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longbench_sched.cli.engine_flags import one_of, read_timestamps
from longbench_sched.cli.measure import Timing
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.slo import Slo
from longbench_sched.workload import strict
from longbench_sched.workload.overrides import Overrides


def read_overrides(given: Mapping[str, Any]) -> Overrides:
    """What is changed in a workload. Raises UsageError."""
    return Overrides(
        isl=given["isl"],
        osl=given["osl"],
        concurrency=given["concurrency"],
        num_prompts=given["num_prompts"],
        request_rate=given["request_rate"],
        burstiness=given["burstiness"],
        max_concurrency=given["max_concurrency"],
        duration=given["duration"],
        num_warmups=given["num_warmups"],
        prompts=given["prompts"],
        slo=Slo.parse(given["goodput"]) if given["goodput"] else None,
    )


def read_timing(given: Mapping[str, Any]) -> Timing:
    """How it is sent and timed. Raises UsageError."""
    total, ca_file = given["timeout_total"], given["ca_file"]
    timeouts = Timeouts(
        connect_s=strict.duration_s(given["timeout_connect"], "--timeout-connect"),
        first_token_s=strict.duration_s(given["timeout_first_token"], "--timeout-first-token"),
        idle_s=strict.duration_s(given["timeout_idle"], "--timeout-idle"),
        total_s=None if total is None else strict.duration_s(total, "--timeout-total"),
    )
    return Timing(
        transport="http" if one_of(given["transport"], ("wire", "http"), "--transport") == "http" else "wire",
        timestamps=read_timestamps(given["timestamps"]),
        timeouts=timeouts,
        ca_file=None if ca_file is None else Path(ca_file),
        insecure=given["insecure"],
        proxy_from_env=given["proxy_from_env"],
        keep_text=given["keep_text"],
        has_preflight=not given["no_preflight"],
    )
