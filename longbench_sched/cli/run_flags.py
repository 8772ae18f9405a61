"""The flags of `run` as the rooms want them; read from the plain values that an experiment stores to be resumed with."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from longbench_sched.cli.embedded import Settings
from longbench_sched.cli.engine_flags import one_of, read_timestamps
from longbench_sched.cli.measure import Timing
from longbench_sched.errors import UsageError
from longbench_sched.load.timeouts import Timeouts
from longbench_sched.slo import Slo
from longbench_sched.workload import strict
from longbench_sched.workload.overrides import Overrides

_OF_A_SERVER = ("model", "header", "api_key_env", "ca_file", "insecure")


def check_engine_flags(given: Mapping[str, Any]) -> None:
    """Raise UsageError for a flag that the engine of these flags has no use for: it would be ignored without a word."""
    usual = Settings()
    of_the_embedded = {"gpu": usual.gpu, "sim_model": usual.model, "sim_set": None, "time_scale": usual.time_scale}
    if given["base_url"] is None:
        idle = [name for name in _OF_A_SERVER if given[name]]
        why = "without --base-url the embedded engine is measured, which has no use for it. Give --base-url, or leave it out."
    else:
        idle = [name for name, value in of_the_embedded.items() if (given[name] or None) != value]
        why = "that is for the embedded engine, and --base-url names another. Leave one of them out."
    if idle:
        flags = ", ".join("--" + name.replace("_", "-") for name in idle)
        raise UsageError(f"{flags}: {why}")


def refuse_idle(given: Mapping[str, Any], names: Collection[str], why: str) -> None:
    """Raise UsageError for flags of `run` with these names that were given: they would be ignored without a word."""
    from longbench_sched.cli.run import run

    usual = {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()}
    idle = ", ".join("--" + name.replace("_", "-") for name, value in given.items() if name in names and value != usual[name])
    if idle:
        raise UsageError(f"{idle.replace('--workload', 'the workload')}: {why}")


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
