"""Step traces made by hand."""

from __future__ import annotations

from longbench_sched.steps import StepColumns, StepFacts, StepTable

MS = 1_000_000
FACTS = StepFacts("run", "sglang", "H200", "Qwen", 1000, 1000 * MS)


def trace(*steps: tuple[float, float, str, dict[str, float | str]], facts: StepFacts = FACTS) -> StepTable:
    """Steps of (begin ms, end ms, phase, other columns); what is not given is 0, or `compute`."""
    columns = StepColumns()
    for begin_ms, end_ms, phase, more in steps:
        given = {"begin_ns": int(begin_ms * MS), "end_ns": int(end_ms * MS), "phase": phase, "bound": "compute", **more}
        columns.add(
            {name: int(given.get(name, 0)) for name in columns.ints},
            {name: float(given.get(name, 0)) for name in columns.floats},
            {name: str(given.get(name, "")) for name in columns.texts},
        )
    return columns.table(facts)
