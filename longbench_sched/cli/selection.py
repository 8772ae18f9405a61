"""Names on the command line -> sets of runs: what stands on one side of a comparison.

A name may be a baseline, a file, a folder, a pattern, `latest`, a run id or a part of it, the id of an experiment or the name
of a target in one; several joined by commas are one side. A name that means runs of more than one engine setting is refused,
since their mean would be of nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longbench_sched.compare.baseline import decode_baseline
from longbench_sched.compare.comparison import Side
from longbench_sched.compare.point import RunPoint, point_of, target_name
from longbench_sched.errors import StoreError, UsageError
from longbench_sched.metrics.summary import summarize
from longbench_sched.run import RunMeta
from longbench_sched.slo import Slo
from longbench_sched.store import baselines
from longbench_sched.store.catalogue import LATEST, find_run, list_runs, read_stored
from longbench_sched.store.meta import read_meta


def select_sides(names: Sequence[str], folder: Path, slo: Slo | None = None, *, with_curves: bool = False) -> list[Side]:
    """One side a name; a single name that means a whole experiment gives one side a target, in the order they were run.

    With curves they also hold what charts are drawn from.

    Raises StoreError, UsageError.
    """
    if len(names) == 1 and not baselines.has_baseline(names[0], folder):
        groups = _by_target(_paths(names[0], folder))
        if len(groups) > 1:
            return _named_apart([_side(target, paths, slo, with_curves) for target, paths in groups.items()], list(groups))
    return _named_apart([select_side(name, folder, slo, with_curves=with_curves) for name in names], names)


def select_side(name: str, folder: Path, slo: Slo | None = None, *, with_curves: bool = False) -> Side:
    """The runs that a name means. Raises StoreError, and UsageError if they are of several targets."""
    if baselines.has_baseline(name, folder):
        return Side(name, decode_baseline(*baselines.read_baseline(name, folder)).points)
    groups = _by_target(_paths(name, folder))
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


def _paths(name: str, folder: Path) -> list[Path]:
    """The run files of a name. Raises StoreError if there is none."""
    if "," in name and not os.path.exists(name):
        return _some(list(dict.fromkeys(path for part in name.split(",") if part for path in _paths(part, folder))), name)
    runs = list_runs(folder)
    found = [] if "/" in name else [path for path in runs if path.stem == name] or _of_target(runs, name)
    if found:  # before a folder that happens to be called like a target
        return found
    if os.path.isdir(name):
        return _some(list_runs(Path(name)), name)
    if any(character in name for character in "*?[") and not os.path.exists(name):
        base = Path(name).parent if len(Path(name).parts) > 1 else folder
        return _some(
            [path for path in list_runs(base) if path.match(Path(name).name) or path.match(f"{Path(name).name}.*")], name
        )
    if os.path.isfile(name):
        return [Path(name)]
    if name == LATEST and runs:
        return _of_experiment(runs, runs[-1])
    found = [path for path in runs if path.stem.startswith(name)] or [path for path in runs if name in path.stem]
    return found or [find_run(name, folder)]  # which says what is near


def _some(paths: list[Path], name: str) -> list[Path]:
    if not paths:
        raise StoreError(f"no run in {name!r}. Measure something first, or name another folder.")
    return paths


def _of_experiment(runs: Sequence[Path], one: Path) -> list[Path]:
    """All runs of the experiment that a run belongs to; itself alone if it belongs to none."""
    wanted = read_meta(one).experiment.get("id")
    return [one] if wanted is None else [path for path in runs if _place(path).get("id") == wanted]


def _of_target(runs: Sequence[Path], name: str) -> list[Path]:
    """The runs of the newest experiment that has a target of that name."""
    wanted, found = None, []
    for path in reversed(runs):
        place = _place(path)
        if place.get("target") == name and wanted in (None, place.get("id")):
            wanted = place.get("id")
            found.append(path)
    return found[::-1]


def _place(path: Path) -> Mapping[str, Any]:
    """Where a run stands in its experiment; nowhere, if the file is no run that can be read: it was not asked for."""
    try:
        return read_meta(path).experiment
    except StoreError:
        return {}


def points_of(sides: Sequence[Side]) -> list[RunPoint]:
    """All runs of some sides."""
    return [point for side in sides for point in side.points]
