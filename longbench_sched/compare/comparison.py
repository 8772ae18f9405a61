"""Comparison: a base and one or more candidates, figure by figure and load by load.

Every load (a cell: a workload, or one step of a sweep) is compared by itself. There is no figure pooled over loads: a setting
that gains 3 % at 32K and 9 % at 256K has no gain of 6 %. What the comparison shows is judged together: the p values of all its
figures are corrected by Holm, so that the chance of any false "better" or "worse" on the page is at most 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from longbench_sched.compare.delta import Delta, holm, judge, measure, with_intervals_inside
from longbench_sched.compare.difference import FactDifference, differing_facts
from longbench_sched.compare.figure import DEFAULT, Figure, find_figure
from longbench_sched.compare.frontier import Frontier, find_frontier, objectives_of
from longbench_sched.compare.parity import Disparity, find_disparities
from longbench_sched.compare.point import RunPoint, common_window
from longbench_sched.compare.ranking import Ranking, rank
from longbench_sched.compare.together import Together, share_blocks, stand_together
from longbench_sched.compare.trend import Trend, find_setting_trends, find_trends
from longbench_sched.errors import NotComparableError


@dataclass(frozen=True, slots=True)
class Side:
    """Runs that are compared as one thing: an engine with its settings."""

    name: str
    points: tuple[RunPoint, ...]

    def cells(self) -> list[str]:
        """The loads it was measured under, in the order in which they came."""
        return list(dict.fromkeys(point.cell for point in self.points))

    def within(self, cell: str) -> tuple[RunPoint, ...]:
        """Its runs under one load, in the order of their blocks."""
        points = [point for point in self.points if point.cell == cell]
        return tuple(sorted(points, key=lambda p: (p.experiment or "", -1 if p.block is None else p.block, p.started_at)))


@dataclass(frozen=True, slots=True)
class Match:
    """One candidate against the base under one load, in one window."""

    cell: str
    workload: str
    params: Mapping[str, float]
    window: str
    candidate: str
    paired: bool
    n_base: int
    n_candidate: int
    disparities: tuple[Disparity, ...]
    deltas: tuple[Delta, ...]

    def delta(self, key: str) -> Delta | None:
        """The delta of a figure, if it is part of this comparison."""
        return next((delta for delta in self.deltas if delta.figure.key == key), None)

    @property
    def is_ranked(self) -> bool:
        """Whether anything may be called better or worse here."""
        return all(disparity.consequence not in ("refuse", "rank") for disparity in self.disparities)

    @property
    def is_refused(self) -> bool:
        """Whether there is nothing to be compared."""
        return any(disparity.consequence == "refuse" for disparity in self.disparities)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that a page of comparison says."""

    base: Side
    candidates: tuple[Side, ...]
    facts: tuple[FactDifference, ...]  # values in the order of base, candidates
    matches: tuple[Match, ...]  # load by load, candidate by candidate
    rankings: tuple[Ranking, ...]  # with more than one candidate
    frontiers: tuple[Frontier, ...]
    trends: tuple[Trend, ...]
    notes: tuple[str, ...] = ()
    refused: tuple[Match, ...] = ()  # candidates under loads where they are not like with like: none of their figures is shown

    @property
    def sides(self) -> tuple[Side, ...]:
        """Base and candidates."""
        return (self.base, *self.candidates)

    @property
    def is_comparable(self) -> bool:
        """Whether every match may be judged."""
        return not self.refused and all(match.is_ranked for match in self.matches)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be compared, and how."""

    figures: tuple[str, ...] = DEFAULT
    window: str | None = None  # None: the steady window where all runs have one
    anyway: bool = False  # show numbers that would be refused; nothing is then called better or worse


def compare(base: Side, candidates: Sequence[Side], wish: Wish | None = None) -> Comparison:
    """Compare. What is refused is left out and named, so that one side that failed costs no other.

    Raises NotComparableError that names why, if nothing is left; `wish.anyway` leaves nothing out.
    """
    wish = wish or Wish()
    figures = [find_figure(key) for key in wish.figures]
    matches = [
        match
        for cell in base.cells()
        for side in candidates
        if side.within(cell)
        for match in match_sides(cell, base, side, figures, wish.window)
    ]
    if not matches:
        raise NotComparableError(_no_common_load(base, candidates))
    refused = [] if wish.anyway else [match for match in matches if match.is_refused]
    if len(refused) == len(matches):
        raise NotComparableError(_refusal(refused[0]))
    corrected = correct([match for match in matches if wish.anyway or not match.is_refused])
    standing = {
        cell: stand_together(_points(base, candidates, here), wish.window) for cell, here in _ranked_cells(corrected).items()
    }
    ranked = {cell: together for cell, together in standing.items() if together.barrier is None}
    frontiers = [
        find_frontier(cell, together.window, together.points, objectives_of(together.spoils))
        for cell, together in ranked.items()
    ]
    return Comparison(
        base=base,
        candidates=tuple(candidates),
        facts=differing_facts([side.points for side in (base, *candidates)]),
        matches=tuple(corrected),
        rankings=tuple(ranking for cell, together in ranked.items() for ranking in _rankings(cell, together, figures)),
        frontiers=tuple(frontiers),
        trends=(*find_trends(corrected), *find_setting_trends(base, frontiers, corrected)),
        notes=(*_notes(base, candidates), *_barrier_notes(standing)),
        refused=tuple(refused),
    )


def match_sides(cell: str, base: Side, candidate: Side, figures: Sequence[Figure], window: str | None = None) -> list[Match]:
    """One load compared: over the common window, and lane by lane where it has lanes. p values are not corrected yet."""
    ours, theirs, paired = pair_blocks(base.within(cell), candidate.within(cell))
    disparities = find_disparities(ours, theirs)
    everyone = (*ours, *theirs)
    windows = [window] if window is not None else [common_window(everyone)]
    if window is None:
        windows += [lane for lane in ours[0].lanes if all(lane in point.values for point in everyone)]
    return [
        Match(
            cell=cell,
            workload=theirs[0].workload,
            params=theirs[0].params,
            window=name,
            candidate=candidate.name,
            paired=paired,
            n_base=len(ours),
            n_candidate=len(theirs),
            disparities=disparities,
            deltas=tuple(
                delta for figure in figures if (delta := _delta(figure, ours, theirs, name, paired, disparities)) is not None
            ),
        )
        for name in windows
    ]


def pair_blocks(
    base: Sequence[RunPoint], candidate: Sequence[RunPoint]
) -> tuple[tuple[RunPoint, ...], tuple[RunPoint, ...], bool]:
    """Runs of the same blocks, pair by pair, and True; or all of them and False where they do not share two blocks.

    With shared blocks, runs of other blocks are left out: they have no partner that saw the same moment.
    """
    shared = share_blocks([base, candidate])
    return (tuple(base), tuple(candidate), False) if shared is None else (shared[0], shared[1], True)


def _delta(
    figure: Figure,
    base: Sequence[RunPoint],
    candidate: Sequence[RunPoint],
    window: str,
    paired: bool,
    disparities: Sequence[Disparity],
) -> Delta | None:
    """The delta of one figure; None where neither side knows it, or where it is 0 throughout (no errors: nothing to say)."""
    ours, theirs = ([point.value(figure.key, window) for point in points] for points in (base, candidate))
    if paired:
        pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
        before, after = [a for a, _ in pairs], [b for _, b in pairs]
    else:
        before, after = [a for a in ours if a is not None], [b for b in theirs if b is not None]
    if not any(before) and not any(after):
        return None
    delta = measure(figure, before, after, paired=paired)
    if len(before) == len(after) == 1:
        delta = with_intervals_inside(delta, _inside(base, figure, window), _inside(candidate, figure, window))
    spoilers = [disparity for disparity in disparities if disparity.spoils(figure)]
    if not spoilers:
        return delta
    why = {"chunks": "packing", "limits": "limits"}
    return replace(
        delta, call="not comparable", note=next((why[s.consequence] for s in spoilers if s.consequence in why), None)
    )


def _inside(points: Sequence[RunPoint], figure: Figure, window: str) -> tuple[float, float] | None:
    return points[0].within.get(window, {}).get(figure.key)


def correct(matches: Sequence[Match]) -> list[Match]:
    """The matches with p values corrected for all of their figures together, and each delta judged."""
    every = [delta.p for match in matches for delta in match.deltas if delta.p is not None and delta.call != "not comparable"]
    adjusted = iter(holm(every))
    corrected = []
    for match in matches:
        deltas = []
        for delta in match.deltas:
            if delta.p is not None and delta.call != "not comparable":
                delta = judge(replace(delta, p_adjusted=next(adjusted)))
            deltas.append(delta)
        corrected.append(replace(match, deltas=tuple(deltas)))
    return corrected


def _refusal(match: Match) -> str:
    disparity = next(disparity for disparity in match.disparities if disparity.consequence == "refuse")
    return (
        f"{match.candidate} cannot be compared with the base ({disparity.id}). {disparity.text}\n"
        f"{disparity.next_step} --anyway shows the numbers without judging them."
    )


def _no_common_load(base: Side, candidates: Sequence[Side]) -> str:
    theirs = ", ".join(dict.fromkeys(cell for side in candidates for cell in side.cells()))
    return (
        f"no load in common (plans-differ): {base.name} was measured under {', '.join(base.cells())}, "
        f"the candidates under {theirs or 'nothing'}.\nRun both with the same workload; `run EXPERIMENT.toml` does."
    )


def _ranked_cells(matches: Sequence[Match]) -> dict[str, list[Match]]:
    """The loads under which everything may be judged, with their matches."""
    cells: dict[str, list[Match]] = {}
    for match in matches:
        cells.setdefault(match.cell, []).append(match)
    return {cell: here for cell, here in cells.items() if all(match.is_ranked for match in here)}


def _points(base: Side, candidates: Sequence[Side], matches: Sequence[Match]) -> dict[str, tuple[RunPoint, ...]]:
    """The runs of the base and of the candidates that these matches, of one load, are about."""
    names, cell = {match.candidate for match in matches}, matches[0].cell
    return {side.name: side.within(cell) for side in (base, *candidates) if side is base or side.name in names}


def _rankings(cell: str, together: Together, figures: Sequence[Figure]) -> list[Ranking]:
    """One a figure that is comparable on all sides; none of only two, since that is the match itself."""
    if len(together.points) < 3:
        return []
    return rank(cell, together.window, together.points, [figure for figure in figures if not together.spoils(figure)])


def _barrier_notes(standing: Mapping[str, Together]) -> list[str]:
    """Why candidates that may each be held against the base are not ranked."""
    return [
        f"{cell}: nothing is ranked, since {one} and {other} are not like with like ({disparity.id}). {disparity.text}"
        for cell, together in standing.items()
        if together.barrier is not None
        for one, other, disparity in [together.barrier]
    ]


def same_runs_notes(base: Side, candidate: Side) -> list[str]:
    """That runs are held against themselves: a script that measured nothing looks like a build that changed nothing."""
    both = {point.run_id for point in base.points} & {point.run_id for point in candidate.points}
    n = len(both)
    if not n:
        return []
    return [f"{candidate.name}: {n} of its {len(candidate.points)} runs stand{'s' * (n == 1)} on the base's side as well."]


def left_out_notes(base: Side, candidate: Side) -> list[str]:
    """That a side has blocks that the other lacks: in one of them an engine may have died."""
    notes = []
    for cell in base.cells():
        ours, theirs = base.within(cell), candidate.within(cell)
        first, _, paired = pair_blocks(ours, theirs)
        if paired and (len(ours), len(theirs)) != (len(first), len(first)):
            notes.append(
                f"{candidate.name}, {cell}: runs of blocks that the other side does not have are left out "
                f"({len(ours)} and {len(theirs)} runs, {len(first)} pairs)."
            )
    return notes


def _notes(base: Side, candidates: Sequence[Side]) -> list[str]:
    notes = []
    for side in candidates:
        notes += [*same_runs_notes(base, side), *left_out_notes(base, side)]
        for cell in base.cells():
            ours, theirs = base.within(cell), side.within(cell)
            if not theirs:
                notes.append(f"{side.name} was not measured under {cell}.")
                continue
            _, _, paired = pair_blocks(ours, theirs)
            if not paired and len(ours) > 1 and len(theirs) > 1:
                notes.append(
                    f"{side.name}, {cell}: not measured in the same blocks, so a drift between the two (heat, neighbours, "
                    "time of day) would be taken for a difference."
                )
            if not paired and min(len(ours), len(theirs)) < 2:
                inside = " Intervals are from inside the runs." if len(ours) == len(theirs) else ""
                notes.append(
                    f"{side.name}, {cell}: one run on a side.{inside} Nothing is judged: it does not tell how the next run "
                    "would differ. Use --num-runs 5."
                )
    return notes
