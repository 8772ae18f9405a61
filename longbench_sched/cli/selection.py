"""Names on the command line -> sets of runs: what stands on one side of a comparison.

A name is a baseline, or what `store.catalogue.find_runs` takes. One that means runs of more than one engine setting is refused,
since their mean would be of nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from longbench_sched.compare.baseline import decode_baseline
from longbench_sched.compare.comparison import Side
from longbench_sched.compare.point import point_of, target_name
from longbench_sched.errors import UsageError
from longbench_sched.metrics.summary import summarize
from longbench_sched.run import RunMeta
from longbench_sched.slo import Slo
from longbench_sched.store import baselines
from longbench_sched.store.catalogue import find_runs, read_stored
from longbench_sched.store.meta import read_meta


def select_sides(names: Sequence[str], folder: Path, slo: Slo | None = None, *, with_curves: bool = False) -> list[Side]:
    """One side a name; a single name that means a whole experiment gives one side a target, in the order they were run.

    With curves they also hold what charts are drawn from.

    Raises StoreError, UsageError.
    """
    if len(names) == 1 and not baselines.has_baseline(names[0], folder):
        groups = _by_target(find_runs(names[0], folder))
        if len(groups) > 1:
            return _named_apart([_side(target, paths, slo, with_curves) for target, paths in groups.items()], list(groups))
    return _named_apart([select_side(name, folder, slo, with_curves=with_curves) for name in names], names)


def select_side(name: str, folder: Path, slo: Slo | None = None, *, with_curves: bool = False) -> Side:
    """The runs that a name means. Raises StoreError, and UsageError if they are of several targets."""
    if baselines.has_baseline(name, folder):
        return Side(name, decode_baseline(*baselines.read_baseline(name, folder)).points)
    groups = _by_target(find_runs(name, folder))
    if len(groups) > 1:
        raise UsageError(f"{name!r} means runs of {len(groups)} targets: {', '.join(groups)}. Name one of them.")
    ((target, paths),) = groups.items()
    return _side(target, paths, slo, with_curves)


def _side(name: str, paths: Sequence[Path], slo: Slo | None, with_curves: bool) -> Side:
    return Side(name, tuple(point_of(summarize(read_stored(path), slo, with_curves=with_curves)) for path in paths))


def _named_apart(sides: Sequence[Side], names: Sequence[str]) -> list[Side]:
    """Sides of one name get the words with which they were asked for."""
    if len({side.name for side in sides}) == len(sides):
        return list(sides)
    named = [replace(side, name=f"{side.name} ({Path(name).stem})") for side, name in zip(sides, names, strict=True)]
    if len({side.name for side in named}) == len(named):
        return named
    return [replace(side, name=f"{place}: {side.name}") for place, side in enumerate(named, 1)]


def _by_target(paths: Sequence[Path]) -> dict[str, list[Path]]:
    metas = _without_first_attempts([(path, read_meta(path)) for path in paths])
    groups: dict[str, list[Path]] = {}
    for path, meta in sorted(metas, key=lambda item: (item[1].experiment.get("target_place", 0), item[1].started_at)):
        groups.setdefault(target_name(meta), []).append(path)
    return groups


def _without_first_attempts(found: Sequence[tuple[Path, RunMeta]]) -> list[tuple[Path, RunMeta]]:
    """Of several attempts at one cell of an experiment, the complete one; an incomplete one only where there is no other."""
    best: dict[object, tuple[Path, RunMeta]] = {}
    for path, meta in found:
        place = meta.experiment
        key = (place["id"], place.get("target"), place.get("cell"), place.get("block")) if place.get("id") else path
        if key not in best or not best[key][1].complete:
            best[key] = (path, meta)
    return list(best.values())
