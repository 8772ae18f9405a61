"""`workloads`: lists what can be sent, and previews one: lengths, due times, digests, total tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longbench_sched.plan import LengthFacts
    from longbench_sched.workload.preview import LanePreview, Preview

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
    from longbench_sched.workload.preview import preview

    output.emit("\n".join(_listing() if name is None else _page(preview(name, seed, n_rows=_FIRST_REQUESTS))))
    return EXIT_OK


def _listing() -> list[str]:
    from longbench_sched.workload.catalogue import list_workloads

    entries = list_workloads()
    width = max((len(entry.name) for entry in entries), default=0)
    return [f"{entry.name:<{width}}  {entry.title}{'  (./workloads)' if entry.origin == 'here' else ''}" for entry in entries]


def _page(shown: Preview) -> list[str]:
    from longbench_sched.quantity import compact

    n = sum(lane.n for lane in shown.lanes)
    n_in, n_out = compact(shown.prompt_tokens), compact(shown.output_tokens)
    return [
        f"{shown.name}  {shown.title}".rstrip(),
        *(line for lane in shown.lanes for line in _lane(lane)),
        f"  {n} requests: {n_in} tokens in, {n_out} out · {len(shown.warmups)} warm-ups",
        f"  seed      {shown.seed}",
        f"  schedule  {shown.schedule_digest}",
        "            lengths and due times: on the pages of `run` and of `simulate`",
        f"  plan      {shown.digest}",
        "            the prompts as well: on the page of a `run` that sends token ids",
        *(f"  note: {note}" for note in shown.notes),
        *_first_requests(shown),
    ]


def _lane(lane: LanePreview) -> list[str]:
    from longbench_sched.quantity import significant

    span = "" if lane.duration_s is None else f"for {lane.duration_s:g} s, at most "
    lines = [f"  {lane.name}: {lane.load} · {span}{lane.n} requests"]
    if lane.realised_rate_per_s is not None and lane.realised_cv is not None and lane.last_due_s is not None:
        rate, cv = significant(lane.realised_rate_per_s), significant(lane.realised_cv)
        lines.append(f"    in this draw {rate}/s, CV {cv}, the last due at {lane.last_due_s:.3f} s")
    return [*lines, f"    {_length('ISL', lane.asked_isl, lane.isl)}", f"    {_length('OSL', lane.asked_osl, lane.osl)}"]


def _length(name: str, asked: str, facts: LengthFacts) -> str:
    if facts.min == facts.max:
        return f"{name} {facts.min} exact"
    return f"{name} {asked}: mean {facts.mean:.0f} (nominal {facts.nominal_mean:.0f}), {facts.min} … {facts.max}"


def _first_requests(shown: Preview) -> list[str]:
    lines = []
    for lane in shown.lanes:
        lines.append(f"  first of {lane.name}:      due        isl     osl")
        for row in shown.rows:
            if row.lane == lane.name:
                due = "when free" if row.due_s is None else f"{row.due_s:.3f} s"
                lines.append(f"    {row.id:<10} {due:>14} {row.isl:>10} {row.osl:>7}")
    return lines
