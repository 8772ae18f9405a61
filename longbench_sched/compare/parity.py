"""Parity: whether two sets of runs may be compared at all, and if not, why.

An engine that answers from a warm cache, stops early or was sent other prompts looks faster than it is. Each such disparity
has a name, what was seen, and a consequence:

    refuse   no comparison: the two did not do the same work
    rank     figures are shown, but nothing is called better or worse
    chunks   figures that depend on how tokens are packed into events are not comparable; TPOT is
    limits   figures that count what met a limit are not comparable; the others are
    mark     shown beside the numbers, which stand
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from longbench_sched.compare.figure import Figure
from longbench_sched.compare.point import RunPoint
from longbench_sched.quantity import significant

LENGTH_TOLERANCE = 0.02  # of realised ISL and OSL, between the two
CACHE_TOLERANCE = 0.05  # of the share of prompt tokens that came from a prefix cache
PACKING_TOLERANCE = 0.05  # of tokens per chunk
MIN_SUCCESS = 0.95

Consequence = Literal["refuse", "rank", "chunks", "limits", "mark"]


@dataclass(frozen=True, slots=True)
class Disparity:
    """One reason for which two sets of runs are not like with like."""

    id: str
    consequence: Consequence
    text: str
    next_step: str

    def spoils(self, figure: Figure) -> bool:
        """Whether it leaves nothing to be said of that figure."""
        match self.consequence:
            case "refuse" | "rank":
                return True
            case "chunks":
                return figure.is_by_chunk
            case "limits":
                return figure.is_by_limits
            case "mark":
                return False


_Look = Callable[[Sequence[RunPoint], Sequence[RunPoint]], "Disparity | None"]


def find_disparities(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> tuple[Disparity, ...]:
    """Everything that stands between these two sets of runs, the gravest first."""
    found = [disparity for look in _LOOKS if (disparity := look(base, candidate)) is not None]
    return tuple(sorted(found, key=lambda disparity: get_args(Consequence).index(disparity.consequence)))


def _plans(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    ours, theirs = (Counter(point.schedule for point in points) for points in (base, candidate))
    # Also in the same shares: 4 runs of one draw and 1 of another are not the load of 1 and 4.
    if ours.keys() == theirs.keys() and all(ours[one] * len(candidate) == theirs[one] * len(base) for one in ours):
        return None
    return Disparity(
        "plans-differ",
        "refuse",
        f"The two were not sent the same load: {_workloads(base)} (schedule {_short(ours)}) and "
        f"{_workloads(candidate)} (schedule {_short(theirs)}).",
        "Run both with the same workload, flags and --seed; `run EXPERIMENT.toml` does.",
    )


def _isl(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    return _lengths(
        "isl-differs", "prompts", _mean(base, lambda p: p.isl_mean), _mean(candidate, lambda p: p.isl_mean), ""
    )  # fmt: skip


def _osl(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    shares = [_mean(points, lambda p: p.osl_share) for points in (base, candidate)]
    asked = ""
    if shares[0] is not None and shares[1] is not None:
        asked = f" ({_percent(shares[0])} and {_percent(shares[1])} of what was asked)"
    return _lengths(
        "osl-differs", "answers", _mean(base, lambda p: p.osl_mean), _mean(candidate, lambda p: p.osl_mean), asked
    )  # fmt: skip


def _lengths(name: str, what: str, ours: float | None, theirs: float | None, more: str) -> Disparity | None:
    if ours is None or theirs is None or abs(theirs - ours) <= LENGTH_TOLERANCE * max(ours, theirs):
        return None
    return Disparity(
        name,
        "refuse",
        f"The {what} were not equally long: {significant(ours, 4)} and {significant(theirs, 4)} tokens on average{more}; "
        f"limit {_percent(LENGTH_TOLERANCE)} apart.",
        "See that both engines get the prompts as planned and run to the length asked for (ignore_eos, the tokenizer).",
    )


def _incomplete(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    cut = [point.run_id for point in (*base, *candidate) if not point.complete]
    if not cut:
        return None
    return Disparity(
        "incomplete",
        "refuse",
        f"{_listed(cut)} ended before all was sent.",
        "Leave it out, or run it again (`run --resume` runs only what is missing).",
    )


def _failures(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    rates = [_success(points) for points in (base, candidate)]
    if min(rates) >= 1:
        return None
    shares = " and ".join(dict.fromkeys(_percent(1 - rate) for rate in rates))
    words = f"{shares} of the requests did not succeed"
    if min(rates) < MIN_SUCCESS:
        return Disparity(
            "failures",
            "refuse",
            f"{words} (limit {_percent(1 - MIN_SUCCESS)}): the latencies are those of the lucky ones.",
            "Find the cause first: `show` lists the reasons.",
        )
    return Disparity(
        "some-failures", "mark", f"{words}.", "Latencies are of successes only; see errors and the reasons in `show`."
    )


def _cache(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    ours, theirs = (_mean(points, lambda p: p.cached_share) for points in (base, candidate))
    if ours is None and theirs is None:
        return None
    if ours is None or theirs is None:
        known = ours if ours is not None else theirs
        if known is None or known <= CACHE_TOLERANCE:
            return None
        return Disparity(
            "cache-unknown",
            "mark",
            f"On one side {_percent(known)} of the prompt tokens came from the prefix cache; the other side does not say.",
            "Compare cold against cold: other prompts (--seed), or prefix caching off.",
        )
    if abs(theirs - ours) <= CACHE_TOLERANCE:
        return None
    return Disparity(
        "cache-differs",
        "rank",
        f"Cache state differs: {_percent(ours)} and {_percent(theirs)} of the prompt tokens came from the prefix cache "
        f"(limit {significant(100 * CACHE_TOLERANCE)} points apart). Not comparable: nothing is ranked.",
        "Bring both to the same state: cold (other prompts, caching off), or warmed in the same way.",
    )


def _packing(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    ours, theirs = (_mean(points, lambda p: p.tokens_per_chunk) for points in (base, candidate))
    if ours is None or theirs is None or abs(theirs - ours) <= PACKING_TOLERANCE * max(ours, theirs):
        return None
    return Disparity(
        "packing-differs",
        "chunks",
        f"Packing differs: {significant(ours)} vs {significant(theirs)} tokens in a chunk. ITL and ICG are not comparable; "
        "TPOT is.",
        "Set the same stream interval on both, or read TPOT.",
    )


def _limits(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    ours, theirs = ({tuple(sorted(point.slo.items())) for point in points if point.slo} for points in (base, candidate))
    if not ours or not theirs or ours == theirs:
        return None
    return Disparity(
        "limits-differ",
        "limits",
        f"Goodput counts what met other limits: {_limits_text(ours)} and {_limits_text(theirs)} (ms). It is not comparable; "
        "the rest is.",
        "Give both the same with --goodput; a baseline keeps those that its runs were made with.",
    )


def _limits_text(limits: set[tuple[tuple[str, float], ...]]) -> str:
    return " or ".join(" ".join(f"{name}:{1e3 * limit_s:g}" for name, limit_s in one) for one in sorted(limits))


_SPOILED = {
    "client-limited": "the tool could not keep up, so the numbers are partly its own",
    "client-rate": "the tool sent more slowly than planned",
    "impossible-values": "stamps or counts are wrong",
    "self-check-failed": "the records do not agree with themselves",
    "server-late": "the embedded engine could not keep its own clock",
    "isl-mismatch": "the server counted other prompt lengths than planned",
}


def _spoiled(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    found = [(mark, [point.run_id for point in (*base, *candidate) if mark in point.marks]) for mark in _SPOILED]
    seen = [f"{mark} ({_listed(marked)}: {_SPOILED[mark]})" for mark, marked in found if marked]
    if not seen:
        return None
    name = next(mark for mark, marked in found if marked)
    return Disparity(
        name,
        "rank",
        f"{'; '.join(seen)}. Nothing is called better or worse.",
        "Mend the cause and run again; see docs/advice.md.",
    )


def _clock_scales(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    # In virtual time there is no client whose share a factor could change.
    ours, theirs = (
        {p.time_scale for p in points if p.time_scale is not None and not p.is_virtual} for points in (base, candidate)
    )
    if not ours or not theirs or ours == theirs:
        return None
    return Disparity(
        "clock-scales-differ",
        "rank",
        f"The engines' clocks ran x{_scales(ours)} and x{_scales(theirs)}: what the client and the network take is multiplied "
        "with the rest, by another factor on each side. Nothing is called better or worse.",
        "Run both with the same --time-scale.",
    )


def _scales(found: set[float]) -> str:
    return ", x".join(f"{scale:g}" for scale in sorted(found))


def _virtual(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    ours, theirs = ({p.is_virtual for p in points if p.is_virtual is not None} for points in (base, candidate))
    if not ours or not theirs or ours == theirs or _simulated(base, candidate) is not None:
        return None
    return Disparity(
        "virtual-and-wall",
        "mark",
        "One side ran in virtual time, the other over a network: what the client, the network and a busy machine add is in one "
        "of them alone.",
        "Compare simulated with simulated, or embedded with embedded.",
    )


def _imported(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    kinds = [{"imported" in point.marks for point in points} for points in (base, candidate)]
    if kinds == [{True}, {True}]:
        return Disparity(
            "imported",
            "mark",
            "Both sides are of another tool's files: prompt lengths and rate were the same, arrivals and prompts are not told.",
            "See that both were made with the same flags and seed, on a server that knew neither's prompts.",
        )
    if kinds[0] == kinds[1]:
        return None
    return Disparity(
        "imported-and-own",
        "mark",
        "One side was measured by another tool, with stamps and definitions of its own: a part of the difference is theirs.",
        "See docs/reconcile.md, and `report --as` for our runs under that tool's definitions.",
    )


def _simulated(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    kinds = [{point.simulated for point in points} for points in (base, candidate)]
    if kinds[0] == kinds[1]:
        return None
    return Disparity(
        "simulated-and-real",
        "mark",
        "One side is simulated, the other measured: the difference is the simulator's error as much as the engine's.",
        "See `calibrate` and `claims` for how far the simulator can be trusted.",
    )


def _machines(base: Sequence[RunPoint], candidate: Sequence[RunPoint]) -> Disparity | None:
    ours, theirs = ({(p.machine.get("cpu"), p.machine.get("cores")) for p in points} for points in (base, candidate))
    if ours == theirs:
        return None
    return Disparity(
        "machines-differ",
        "mark",
        f"Measured from different machines: {_machine_names(ours)} and {_machine_names(theirs)}.",
        "A client on other hardware or in another place in the network moves TTFT; measure both from one machine.",
    )


_LOOKS: tuple[_Look, ...] = (
    _plans,
    _isl,
    _osl,
    _incomplete,
    _failures,
    _cache,
    _spoiled,
    _packing,
    _limits,
    _clock_scales,
    _simulated,
    _virtual,
    _imported,
    _machines,
)


def _mean(points: Sequence[RunPoint], value: Callable[[RunPoint], float | None]) -> float | None:
    values = [found for point in points if (found := value(point)) is not None]
    return sum(values) / len(values) if values else None


def _success(points: Sequence[RunPoint]) -> float:
    attempted = sum(point.attempted for point in points)
    return sum(point.ok for point in points) / attempted if attempted else 0.0


def _workloads(points: Sequence[RunPoint]) -> str:
    return ", ".join(sorted({point.cell for point in points}))


def _short(digests: Counter[str]) -> str:
    return ", ".join(sorted(f"{digest[:6]} x {n}" if len(digests) > 1 else digest[:6] for digest, n in digests.items()))


def _listed(named: Sequence[str]) -> str:
    names = list(dict.fromkeys(named))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _machine_names(machines: set[tuple[object, object]]) -> str:
    return ", ".join(sorted(f"{cpu or 'unknown'} x {cores or '?'}" for cpu, cores in machines))


def _percent(share: float) -> str:
    return f"{significant(100 * share)} %"
