"""`workloads`: lists what can be sent, and previews one: lengths, due times, digest, total tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longbench_sched.plan import LengthFacts, Plan

EXAMPLES = """
Examples:

  longbench-sched workloads

  longbench-sched workloads 30k-500-r1 --seed 1
"""

_FIRST_REQUESTS = 5


def workloads(
    name: Annotated[
        str | None, typer.Argument(help="A workload to preview, by name or path. Without it: all that are known.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The draw to preview.")] = 0,
) -> int:
    """What can be sent, and what exactly would it be? Lists the workloads, or previews the plan that one makes."""
    from longbench_sched.cli import output
    from longbench_sched.errors import EXIT_OK

    output.emit("\n".join(_listing() if name is None else _preview(name, seed)))
    return EXIT_OK


def _listing() -> list[str]:
    from longbench_sched.workload.catalogue import list_workloads

    entries = list_workloads()
    width = max((len(entry.name) for entry in entries), default=0)
    return [f"{entry.name:<{width}}  {entry.title}{'  (./workloads)' if entry.origin == 'here' else ''}" for entry in entries]


def _preview(name: str, seed: int) -> list[str]:
    from longbench_sched.report.headline import loop_text
    from longbench_sched.run import plan_facts
    from longbench_sched.workload.build import build_plan
    from longbench_sched.workload.prompt import PromptMaker
    from longbench_sched.workload.spec import Overrides, load_workload

    plan = build_plan(load_workload(name, Overrides()), seed, PromptMaker())
    facts = plan_facts(plan)
    return [
        f"{plan.workload}  {plan.extra.get('title', '')}".rstrip(),
        *(f"  {lane['name']}: {loop_text(lane)} · {lane['requests']} requests" for lane in facts["lanes"]),
        f"  {_length('ISL', plan.isl)} · {_length('OSL', plan.osl)}",
        f"  {_tokens(plan)}",
        f"  seed {seed} · plan {plan.digest}",
        *(f"  note: {note}" for note in plan.notes),
        *_first_requests(plan),
    ]


def _length(name: str, facts: LengthFacts) -> str:
    if facts.min == facts.max:
        return f"{name} {facts.min} exact"
    return f"{name} mean {facts.mean:.0f} (nominal {facts.nominal_mean:.0f}), {facts.min} … {facts.max}"


def _tokens(plan: Plan) -> str:
    from longbench_sched.quantity import compact

    requests = plan.requests
    n_in, n_out = sum(request.isl for request in requests), sum(request.osl for request in requests)
    return f"{len(requests)} requests: {compact(n_in)} tokens in, {compact(n_out)} out · {len(plan.warmups)} warm-ups"


def _first_requests(plan: Plan) -> list[str]:
    lines = []
    for lane in plan.lanes:
        lines.append(f"  first of {lane.name}:      due        isl     osl")
        for request in lane.requests[:_FIRST_REQUESTS]:
            due = "when free" if request.due_s is None else f"{request.due_s:.3f} s"
            lines.append(f"    {request.id:<10} {due:>14} {request.isl:>10} {request.osl:>7}")
    return lines
