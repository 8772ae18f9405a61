"""The notebook API: stored runs as objects with tables, and comparisons of them.

    import longbench_sched as lb

    base = lb.load("results/2026-11-30T1012-vllm-30k-500-c64.parquet")
    base.to_pandas()             # a row a request
    lb.compare(base, "results/2026-11-30T1030-sglang-30k-500-c64.parquet").to_pandas()   # a row a figure

It does what the commands do and says it in data: nothing here measures, and what the commands refuse is refused here by the
same errors (`longbench_sched.errors`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from longbench_sched.errors import StoreError, UsageError
from longbench_sched.metrics.stat import Summary
from longbench_sched.metrics.summary import summarize
from longbench_sched.run import Run, RunMeta
from longbench_sched.slo import Slo
from longbench_sched.store.catalogue import list_runs, read_stored

if TYPE_CHECKING:
    import pandas as pd

    from longbench_sched.compare.comparison import Comparison, Side


class LoadedRun:
    """One stored run; its summary is worked out when it is first asked for."""

    def __init__(self, path: Path, run: Run, slo: Slo | None) -> None:
        self.path, self.run, self._slo = path, run, slo

    @property
    def meta(self) -> RunMeta:
        """What was run: workload, engine and its facts, plan, clock."""
        return self.run.meta

    @cached_property
    def summary(self) -> Summary:
        """Its figures: `summary.whole.stats["ttft"].p50`, in seconds of engine time."""
        return summarize(self.run, self._slo)

    def to_pandas(self) -> pd.DataFrame:
        """A row a request, warm-ups and failures included (filter by `phase` and `status`); times in seconds."""
        from longbench_sched.metrics.frame import per_request

        return per_request(self.run, self._slo)

    def __repr__(self) -> str:
        return _page([self])


class Loaded(Sequence[LoadedRun]):
    """Some runs, oldest first."""

    def __init__(self, runs: Sequence[LoadedRun]) -> None:
        self._runs = tuple(runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[LoadedRun]:
        return iter(self._runs)

    def __getitem__(self, place: int | slice) -> LoadedRun | Loaded:  # type: ignore[override]  # a slice is Loaded again
        return self._runs[place] if isinstance(place, int) else Loaded(self._runs[place])

    @property
    def summaries(self) -> list[Summary]:
        """The figures of each."""
        return [run.summary for run in self._runs]

    def to_pandas(self) -> pd.DataFrame:
        """The requests of all of them, one below the other, with the id of their run in front."""
        from longbench_sched.metrics.frame import stacked

        return stacked({run.meta.run_id: run.to_pandas() for run in self._runs})

    def __repr__(self) -> str:
        return _page(self._runs)


@dataclass(frozen=True)
class Compared:
    """A comparison: its page as text, its figures as a table, and all of it in `comparison`."""

    comparison: Comparison

    def to_pandas(self) -> pd.DataFrame:
        """A row a figure, load and candidate: ratio, difference, interval, verdict; as the CSV of `compare`."""
        from longbench_sched.metrics.frame import from_rows
        from longbench_sched.report.rows import comparison_rows

        return from_rows(comparison_rows(self.comparison))

    def __repr__(self) -> str:
        from longbench_sched.report import terminal
        from longbench_sched.report.versus import build_comparison

        return terminal.render(build_comparison(self.comparison))


def load(*places: str | Path, goodput: Sequence[str] = ()) -> Loaded:
    """Read stored runs: files, patterns (`results/*sglang*.parquet`), or a folder for all of its runs.

    goodput: other limits in ms than the runs had, `["ttft:3000", "tpot:50"]`. Raises StoreError, UsageError.
    """
    slo = Slo.parse(goodput) if goodput else None
    paths = [path for place in places for path in _paths(Path(place))]
    return Loaded([LoadedRun(path, read_stored(path, with_lateness=False), slo) for path in paths])


def compare(base: Loaded | LoadedRun | str | Path, *candidates: Loaded | LoadedRun | str | Path) -> Compared:
    """Compare sets of runs, like with like.

    Raises NotComparableError that says why not, UsageError for several targets on one side.
    """
    from longbench_sched.compare.comparison import compare as compare_sides

    if not candidates:
        raise UsageError("compare needs a base and a candidate: lb.compare(base, candidate).")
    given = (base, *candidates)
    sides = [_side(place, len(given), one) for place, one in enumerate(given, 1)]
    return Compared(compare_sides(sides[0], sides[1:]))


def _paths(place: Path) -> list[Path]:
    if place.is_dir():
        found = list_runs(place)
    elif any(character in place.name for character in "*?["):
        found = [path for path in list_runs(place.parent) if path.match(place.name)]
    else:
        return [place]
    if not found:
        raise StoreError(f"no run in {place}. Name a file, a pattern or a folder that holds some.")
    return found


def _side(place: int, n: int, given: Loaded | LoadedRun | str | Path) -> Side:
    """One side of a comparison, called by its target; where two have one name, its place tells them apart."""
    from longbench_sched.compare.comparison import Side
    from longbench_sched.compare.point import point_of, target_name

    runs = load(given) if isinstance(given, str | Path) else [given] if isinstance(given, LoadedRun) else given
    names = dict.fromkeys(target_name(run.meta) for run in runs)
    if len(names) > 1:
        raise UsageError(
            f"side {place} holds runs of {len(names)} targets: {', '.join(names)}. Their mean would be of nothing."
        )
    if not names:
        raise UsageError(f"side {place} holds no runs.")
    (name,) = names
    return Side(f"{place}: {name}" if n > 1 else name, tuple(point_of(run.summary) for run in runs))


def _page(runs: Sequence[LoadedRun]) -> str:
    from longbench_sched.report import terminal
    from longbench_sched.report.page import build_page

    return terminal.render(build_page([run.summary for run in runs]))
