"""Where an engine's time went, by phase: what a step trace says in one table.

Shares of peak and bandwidth are means over time, not over steps: a phase is as busy as it was for as long as it was.

What does different work is never put together: each pool and each pipeline stage has rows of its own, and a row for the time in
which it did nothing. Engines of one pool are alike and share their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from longbench_sched.quantity import compact, significant
from longbench_sched.report.figures import Scale, duration_text, percent_text, scale_of
from longbench_sched.report.headline import SEPARATOR
from longbench_sched.report.layout import NULL, TIE, Column, Line, Lines, Page, Table
from longbench_sched.steps import PHASES, TRANSFER, PoolFacts, StepTable

MOST_GROUPS = 16  # of which a table has rows; of more stages those in the middle are left out


@dataclass(slots=True)
class _Sum:
    """Steps of one phase, added up."""

    steps_s: list[float] = field(default_factory=list)
    tokens: int = 0
    requests: int = 0
    flop: float = 0.0
    n_bytes: float = 0.0
    compute_s: float = 0.0  # utilisation x time
    memory_s: float = 0.0
    bound_s: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Time of all steps."""
        return sum(self.steps_s)


def with_steps(page: Page, steps: StepTable) -> Page:
    """The page of a run with its steps below what the run carried."""
    at = next((place + 1 for place, block in enumerate(page.blocks) if isinstance(block, Lines)), len(page.blocks))
    return replace(page, blocks=(*page.blocks[:at], *blocks(steps), *page.blocks[at:]))


def blocks(steps: StepTable) -> tuple[Table | Lines, ...]:
    """The table by phase and a few lines on queue and memory, over the measured phase; nothing for an empty trace."""
    rows = measured_rows(steps)
    if not rows:
        return ()
    groups = _groups(steps, rows)
    if len(groups) > 1 or groups[0].pool.n_engines > 1:
        return _table_of_groups(steps, rows, groups), Lines(tuple(_lines_of_groups(steps, rows, groups)))
    return _table(steps, rows), Lines(tuple(_lines(steps, rows)))


def measured_rows(steps: StepTable) -> range:
    """The steps of the measured phase."""
    begins, from_ns = steps.ints["begin_ns"], steps.facts.measured_from_ns
    first = next((row for row in range(steps.n) if begins[row] >= from_ns), steps.n)
    return range(first, steps.n)


def _table(steps: StepTable, rows: Sequence[int]) -> Table:
    sums = _sums(steps, rows)
    busy_s = sum(one.seconds for one in sums.values())
    scale = scale_of("s", _middle([seconds for one in sums.values() for seconds in one.steps_s]))
    cells = [(phase, *_cells(one, busy_s, scale)) for phase, one in sums.items()]
    return Table("Steps by phase", (Column("", "left"), *_columns(scale)), tuple(cells), (_NOTE,))


_NOTE = "MFU, MBU: shares of the GPU's peak FLOP/s and memory bandwidth, over time. tokens, requests: a step's mean."


def _columns(scale: Scale) -> tuple[Column, ...]:
    return (
        Column("steps"),
        Column("time"),
        Column(f"p50 {scale.unit}"),
        Column("tokens", gives_way=1),
        Column("requests", gives_way=2),
        Column("FLOP/B"),
        Column("MFU"),
        Column("MBU"),
        Column("waits for", "left"),
    )


def _cells(one: _Sum, of_s: float, scale: Scale) -> tuple[str, ...]:
    return (
        str(len(one.steps_s)),
        percent_text(one.seconds / of_s),
        scale.number(_middle(one.steps_s)),
        compact(one.tokens / len(one.steps_s)),
        significant(one.requests / len(one.steps_s)),
        compact(one.flop / one.n_bytes) if one.n_bytes else NULL,
        percent_text(one.compute_s / one.seconds),
        percent_text(one.memory_s / one.seconds),
        _bound_text(one),
    )


def _sums(steps: StepTable, rows: Sequence[int]) -> dict[str, _Sum]:
    """By phase, in the order of PHASES; phases that do not occur are left out."""
    found: dict[str, _Sum] = {}
    ints, floats, texts = steps.ints, steps.floats, steps.texts
    for row in rows:
        one = found.setdefault(texts["phase"][row], _Sum())
        seconds = (ints["end_ns"][row] - ints["begin_ns"][row]) / 1e9
        one.steps_s.append(seconds)
        one.tokens += ints["prefill_tokens"][row] + ints["decode_tokens"][row]
        one.requests += ints["n_prefill"][row] + ints["n_decode"][row]
        one.flop += floats["flop"][row]
        one.n_bytes += floats["n_bytes"][row]
        one.compute_s += floats["compute_utilisation"][row] * seconds
        one.memory_s += floats["bandwidth_utilisation"][row] * seconds
        bound = texts["bound"][row]
        one.bound_s[bound] = one.bound_s.get(bound, 0.0) + seconds
    return {phase: found[phase] for phase in PHASES if phase in found}


def _bound_text(one: _Sum) -> str:
    """`compute`, or `memory 83 %, host 17 %`: what steps waited for, by time; under 1 % is left out."""
    shares = sorted(((seconds / one.seconds, bound) for bound, seconds in one.bound_s.items()), reverse=True)
    shown = [(share, bound) for share, bound in shares if share >= 0.01]
    if len(shown) == 1:
        return shown[0][1]
    return ", ".join(f"{bound} {significant(100 * share, 2)}{TIE}%" for share, bound in shown)


def _lines(steps: StepTable, rows: Sequence[int]) -> list[Line]:
    """Time at rest, queue and memory: means over time."""
    ints = steps.ints
    begins, ends = ints["begin_ns"], ints["end_ns"]
    span_ns = ends[rows[-1]] - begins[rows[0]]
    idle_ns = max(0, span_ns - sum(ends[row] - begins[row] for row in rows))
    return [
        Line("Engine", f"{len(rows)} steps in {duration_text(span_ns / 1e9)}, idle {percent_text(idle_ns / span_ns)}"),
        *(Line(label, text) for label, text in _state(steps, rows, steps.facts.kv_tokens).items()),
    ]


def _state(steps: StepTable, rows: Sequence[int], capacity: int) -> dict[str, str]:
    """Batch, queue and memory of an engine with room for so many tokens."""
    ints = steps.ints
    lengths = [(ints["end_ns"][row] - ints["begin_ns"][row]) / 1e9 for row in rows]
    busy_s = sum(lengths)

    def mean(name: str) -> float:
        return sum(ints[name][row] * length for row, length in zip(rows, lengths, strict=True)) / busy_s

    def most(name: str) -> int:
        return max(ints[name][row] for row in rows)

    preempted = sum(ints["n_preempted"][row] for row in rows)
    return {
        "Batch": f"mean {significant(mean('n_running'))} running{SEPARATOR}at most {most('n_running')}",
        "Queue": f"mean {significant(mean('n_waiting'))} waiting{SEPARATOR}at most {most('n_waiting')}",
        "KV": f"mean {percent_text(mean('kv_used_tokens') / capacity)} of {compact(capacity)} tokens{SEPARATOR}"
        f"at most {percent_text(most('kv_used_tokens') / capacity)}{SEPARATOR}{preempted} preemptions",
    }


# -- several engines, or several stages


@dataclass(frozen=True, slots=True)
class _Group:
    """Steps of what does the same work: the engines of a pool, or one of their stages."""

    pool: PoolFacts
    stage: int
    rows: list[int]
    transfers: list[int]

    @property
    def name(self) -> str:
        """`prefill`, `stage 2`, `4 engines`."""
        words = [self.pool.pool, f"stage {self.stage}" if self.pool.n_stages > 1 else ""]
        return " ".join(word for word in words if word) or f"{self.pool.n_engines} engines"


def _groups(steps: StepTable, rows: Sequence[int]) -> list[_Group]:
    """Every stage of every pool, those that never had a step as well."""
    groups = {(pool.pool, stage): _Group(pool, stage, [], []) for pool in steps.facts.engines for stage in range(pool.n_stages)}
    pools, stages, phases = steps.texts["pool"], steps.ints["stage"], steps.texts["phase"]
    for row in rows:
        group = groups[pools[row], stages[row]]
        (group.transfers if phases[row] == TRANSFER else group.rows).append(row)
    return list(groups.values())


def _span_s(steps: StepTable, rows: Sequence[int]) -> float:
    """From the first begin to the last end, of transfers too."""
    return (max(steps.ints["end_ns"][row] for row in rows) - steps.ints["begin_ns"][rows[0]]) / 1e9


def _table_of_groups(steps: StepTable, rows: Sequence[int], groups: Sequence[_Group]) -> Table:
    span_s = _span_s(steps, rows)
    sums = [_sums(steps, group.rows) for group in groups]
    scale = scale_of("s", _middle([seconds for one in sums for phase in one.values() for seconds in phase.steps_s] or [0.0]))
    columns = _columns(scale)
    cells: list[tuple[str, ...]] = []
    half = MOST_GROUPS // 2
    for place, (group, phases) in enumerate(zip(groups, sums, strict=True)):
        if half <= place < len(groups) - half:
            continue
        of_s = span_s * group.pool.n_engines
        idle_s = max(of_s - sum(one.seconds for one in phases.values()), 0.0)
        lines = [(phase, *_cells(one, of_s, scale)) for phase, one in phases.items()]
        lines.append(("idle", NULL, percent_text(idle_s / of_s), *([NULL] * (len(columns) - 3)), ""))
        cells += [("" if n else group.name, *line) for n, line in enumerate(lines)]
    notes = ["time: share of the time from first to last step, over the engines of a pool. idle: bubbles, or nothing to do."]
    if len(groups) > MOST_GROUPS:
        notes.append(f"{groups[half].name} to {groups[-half - 1].name} are left out.")
    is_staged = any(group.pool.n_stages > 1 for group in groups)
    title = "Steps by stage and phase" if is_staged else "Steps by pool and phase" if len(groups) > 1 else "Steps by phase"
    return Table(title, (Column("", "left"), Column("", "left"), *columns), tuple(cells), (*notes, _NOTE))


def _lines_of_groups(steps: StepTable, rows: Sequence[int], groups: Sequence[_Group]) -> list[Line]:
    """Batch, queue and memory by pool, of one engine while it works (of stages: while the first works), and transfers."""
    span_s = _span_s(steps, rows)
    firsts = [group for group in groups if group.stage == 0]
    sizes = " + ".join(_size_text(group.pool) for group in firsts)
    n_plans = sum(len(group.rows) for group in firsts)
    lines = [Line("Engines", f"{sizes}{SEPARATOR}{n_plans} batches in {duration_text(span_s)}")]
    states = [(group, _state(steps, group.rows, group.pool.kv_tokens)) for group in firsts if group.rows]
    for label in ("Batch", "Queue", "KV"):
        said = [
            f"{group.pool.pool}: {state[label]}" if group.pool.pool else state[label]
            for group, state in states
            if label != "Queue" or group.pool.pool != "decode"  # what is there is taken in at once
        ]
        lines += [Line("" if n else label, text) for n, text in enumerate(said)]
    moved = [_transfer_text(steps, group, span_s) for group in groups if group.transfers]
    return lines + [Line("" if n else "KV moved", text) for n, text in enumerate(moved)]


def _size_text(pool: PoolFacts) -> str:
    noun = pool.pool or ("engine" if pool.n_engines == 1 else "engines")
    stages = f" of {pool.n_stages} stages" if pool.n_stages > 1 else ""
    return f"{pool.n_engines} {noun}{stages}"


def _transfer_text(steps: StepTable, group: _Group, span_s: float) -> str:
    ints = steps.ints
    lengths = [(ints["end_ns"][row] - ints["begin_ns"][row]) / 1e9 for row in group.transfers]
    gigabytes = sum(ints["transfer_bytes"][row] for row in group.transfers) / 1e9
    busy = sum(lengths) / span_s / group.pool.n_engines
    way = "into" if group.pool.pool == "decode" else "from"
    return (
        f"{way} {group.pool.pool}: {len(lengths)} transfers{SEPARATOR}{significant(gigabytes)}{TIE}GB{SEPARATOR}"
        f"p50 {duration_text(_middle(lengths))}{SEPARATOR}links busy {percent_text(busy)}"
    )


def _middle(values: Sequence[float]) -> float:
    """The median of a phase's steps, by nearest rank."""
    return sorted(values)[(len(values) - 1) // 2]
