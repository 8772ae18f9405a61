"""Page -> one HTML file that needs nothing else: no script, no network, no font; it opens from a disk or an attachment.

Charts are SVG inside the page, drawn when it is made, so that there is nothing to run in a reader's browser and nothing that a
server's words could make run; the policy in the head forbids it besides. Every text is escaped. The page follows the reader's
dark mode, and on a phone tables and wide charts scroll within themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from longbench_sched.compare.comparison import Side
from longbench_sched.compare.difference import all_facts
from longbench_sched.metrics.curves import BINS, MAX_POINTS, RANKS, TAIL_RANKS
from longbench_sched.metrics.stalls import FACTOR
from longbench_sched.report import headline, several
from longbench_sched.report.charts import Chart, charts
from longbench_sched.report.drawing import to_svg
from longbench_sched.report.layout import TIE, Line, Lines, Notice, Page, Table
from longbench_sched.report.untrusted import clean
from longbench_sched.report.versus_charts import comparison_charts, verdict_charts
from longbench_sched.run import RunMeta

_STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--dim:#59636e;--paper:#fff;--line:#d1d9e0;--soft:#f6f8fa;
--warn:#9a6700;--sim:#8250df;--link:#0969da}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9198a1;--paper:#0d1117;--line:#3d444d;--soft:#151b23;
--warn:#d29922;--sim:#ab7df8;--link:#4493f8}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:.5rem 0 1rem}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}
h3{font-size:1rem;margin:1.4rem 0 .4rem}p{margin:.4rem 0}h1,h2,h3,td,dd{overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.6rem 0}dt{color:var(--dim)}dd{margin:0}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:.22rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:500}.l{text-align:left}.w{white-space:normal;min-width:14rem}tr:first-child th{border-top:0}
.note{color:var(--dim);font-size:.88rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,22rem),1fr));gap:1rem}
figure{margin:0;padding:.6rem;background:var(--soft);border:1px solid var(--line);border-radius:.5rem;min-width:0}
figure svg{max-width:100%;height:auto;display:block}figure.wide{grid-column:1/-1}
figure.wide svg{max-width:none;min-width:56rem;width:100%}a{color:var(--link)}
.warn{border-left:.3rem solid var(--warn);background:var(--soft);padding:.5rem .9rem;margin:.7rem 0;border-radius:.2rem}
.warn b{color:var(--warn)}.sim{color:var(--sim);font-weight:600}
details{margin:.6rem 0}summary{cursor:pointer;color:var(--dim)}
@media(max-width:34rem){dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.4rem}body{padding:.6rem .7rem 3rem}}
@media print{figure{break-inside:avoid}}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

HOW = (
    (
        "TTFT",
        "first event that carries a token, less the moment just before the request's first byte was sent. Role, comment and "
        "usage events are no tokens.",
    ),
    (
        "TPOT",
        "(last event - first event) / (tokens - tokens of the first event), by the server's own count where it gives one.",
    ),
    ("ITL", "the gap before each token; a chunk of k tokens counts k times at gap / k."),
    ("E2E", "last event that carries a token, less the send."),
    (
        "Steady window",
        "the longest stretch with at least 90 % of the peak in flight. Percentiles there are over requests due in it, rates "
        "over events in it.",
    ),
    (
        "Intervals",
        "95 %, of this run's own figure: a moving-block bootstrap over requests in due order. They do not say how much another "
        "run would differ.",
    ),
    (
        "Charts",
        "over the steady window, if there is one. "
        f"Distributions are drawn through {RANKS} ranks and {TAIL_RANKS} more in the last hundredth: off by less than "
        f"{100 / (RANKS - 1):g} % of the values, exact at both ends. Over time each request is a point, up to {MAX_POINTS}; of "
        f"more, {BINS} stretches. In timelines a bar is unbroken while gaps stay below {FACTOR:g} times the median gap.",
    ),
)

HOW_COMPARED = (
    (
        "Evidence",
        "each run gives one value a figure; intervals are of how these differ from run to run, not of requests inside a run.",
    ),
    (
        "Interval",
        "95 %, Student's t on logarithms: of differences block by block where both sides ran in the same blocks, else Welch's.",
    ),
    (
        "Judgement",
        "p values of all figures (of a check: all rules) are corrected together (Holm): at most one page in twenty errs.",
    ),
    ("Smallest visible", "a true change of that size is found in four of five such comparisons."),
    ("Like with like", "lengths, arrivals, cache, packing, failures and the client's health are compared first; see the top."),
)


def render(page: Page) -> str:
    """The whole page. Raises UsageError without the extra [plots]."""
    pictures = charts(page.summaries)
    pictures += comparison_charts(page.comparison) if page.comparison is not None else []
    pictures += verdict_charts(page.verdict) if page.verdict is not None else []
    return "\n".join(_document(page, pictures)).replace(TIE, "&nbsp;") + "\n"


def _document(page: Page, pictures: Sequence[Chart]) -> Iterator[str]:
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(page.title)}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{escape(page.title)}</h1>"
    if page.is_simulated:
        yield f'<p class="sim">{_simulated(page)}</p>'
    yield _lines(page.head)
    yield from map(_notice, page.alarms)
    if page.notices:
        yield f"<p>{len(page.notices)} warnings: {', '.join(_anchor(notice) for notice in page.notices)}</p>"
    yield "<h2>Numbers</h2>"
    yield from (_block(block) for block in page.blocks if not (isinstance(block, Table) and block.is_detail))
    if pictures:
        yield '<h2>Charts</h2><div class="charts">'
        yield from (_figure(chart, f"c{place}") for place, chart in enumerate(pictures))
        yield "</div>"
    if page.notices:
        yield "<h2>Warnings</h2>"
        yield from map(_notice, page.notices)
    details = [block for block in page.blocks if isinstance(block, Table) and block.is_detail]
    if details:
        yield "<h2>Details</h2>"
        yield from (f"<details><summary>{escape(table.title)}</summary>{_grid(table)}</details>" for table in details)
    if page.summaries:
        yield "<h2>Engines, as they say of themselves</h2>"
        yield _facts(page)
        yield "<h2>How it was measured</h2>"
        yield _measured(page)
        yield _lines(tuple(Line(label, text) for label, text in HOW))
    judged = page.comparison or page.verdict
    if judged is not None:
        yield "<h2>Engines, as they say of themselves</h2>"
        yield _facts_of_sides(judged.sides)
        yield "<h2>How it was compared</h2>"
        yield _lines(tuple(Line(label, text) for label, text in HOW_COMPARED))
    yield "</body></html>"


def _simulated(page: Page) -> str:
    """That all figures are of arithmetic, or that some are."""
    runs = [summary.meta.simulated for summary in page.summaries]
    judged = page.comparison or page.verdict
    sides = judged.sides if judged is not None else ()
    if len({*runs, *(point.simulated for side in sides for point in side.points)}) > 1:
        return "Partly simulated: some of these figures are of an engine made of arithmetic, not of a measured one."
    return "Simulated: these are figures of an engine made of arithmetic, not of a measured one."


def _lines(lines: Sequence[Line]) -> str:
    """Labelled lines; those without a label continue the one above."""
    parts: list[str] = []
    for line in lines:
        if line.label or not parts:
            parts.append(f"<dt>{escape(line.label)}</dt><dd>{escape(line.text)}</dd>")
        else:
            parts[-1] = f"{parts[-1].removesuffix('</dd>')}<br>{escape(line.text)}</dd>"
    return f"<dl>{''.join(parts)}</dl>" if parts else ""


def _block(block: Table | Lines) -> str:
    if isinstance(block, Lines):
        return _lines(block.lines)
    return f"<h3>{escape(block.title)}</h3>{_grid(block)}"


def _grid(table: Table) -> str:
    sides = ["l" if column.align == "left" else "" for column in table.columns]
    head = "".join(_cell("th", column.title, side) for column, side in zip(table.columns, sides, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', cell, side) for cell, side in zip(row, sides, strict=True))}</tr>" for row in table.rows
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    heading = f"<tr>{head}</tr>" if any(column.title for column in table.columns) else ""
    return f'<div class="scroll"><table>{heading}{body}</table></div>{notes}'


def _cell(tag: str, text: str, side: str) -> str:
    wide = " w" if side and len(text) > 40 else ""
    return f'<{tag} class="{side}{wide}">{escape(text)}</{tag}>' if side else f"<{tag}>{escape(text)}</{tag}>"


def _figure(chart: Chart, name: str) -> str:
    label = escape(chart.caption)
    svg = to_svg(chart.spec, on_page=name).replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    kind = ' class="wide scroll"' if chart.is_wide else ""
    return f"<figure{kind}>{svg}</figure>"


def _anchor(notice: Notice) -> str:
    return f'<a href="#w-{escape(notice.id)}">{escape(notice.id)}</a>'


def _notice(notice: Notice) -> str:
    advice = " ".join(escape(part) for part in (notice.cause, notice.next_step) if part)
    return f'<div class="warn" id="w-{escape(notice.id)}"><b>{escape(notice.id)}</b> {escape(notice.text)}<br>{advice}</div>'


def _facts(page: Page) -> str:
    """Every fact that an engine gave, a column a run; those that differ come first."""
    metas = [summary.meta for summary in page.summaries]
    names = list(dict.fromkeys(name for meta in metas for name in meta.engine_facts))
    rows = [(clean(name, 40), *(_text(meta.engine_facts.get(name)) for meta in metas)) for name in names]
    if not rows:
        return f"<p>{escape(headline.UNKNOWN_SETTINGS)}</p>"
    rows.sort(key=lambda row: len(set(row[1:])) == 1)
    return _by_run("Fact", page, rows)


def _facts_of_sides(sides: Sequence[Side]) -> str:
    """The same, a column a side of a comparison, with the machines that measured."""
    facts = sorted(all_facts([side.points for side in sides]), key=lambda fact: len(set(fact.values)) == 1)
    rows = [(clean(fact.name, 40), *(clean(value, 80) for value in fact.values)) for fact in facts]
    machines = [{_text(point.machine.get("cpu")) for point in side.points} for side in sides]
    rows.append(("measured from", *(", ".join(sorted(found)) for found in machines)))
    return _columns("Fact", [clean(side.name, 40) for side in sides], rows)


def _measured(page: Page) -> str:
    metas = [summary.meta for summary in page.summaries]
    said = [_provenance(meta) for meta in metas]
    names = list(dict.fromkeys(name for one in said for name in one))
    return _by_run("", page, [(name, *(one.get(name, "-") for one in said)) for name in names])


def _by_run(title: str, page: Page, rows: Sequence[tuple[str, ...]]) -> str:
    return _columns(title, several.labels(page.summaries), rows)


def _columns(title: str, labels: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(_cell("th", text, "l") for text in (title, *labels))
    body = "".join(f"<tr>{''.join(_cell('td', cell, 'l') for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _provenance(meta: RunMeta) -> dict[str, str]:
    """What is needed to repeat a run, in words."""
    target: Mapping[str, Any] = meta.target
    return {
        "Run": clean(meta.run_id),
        "Started": clean(meta.started_at),
        "Plan": ", ".join([*headline.digest_texts(meta), f"seed {meta.seed}"]),
        "Address": _text(target.get("base_url")),
        "API": _text(target.get("api")),
        "Stamps": clean(meta.clock),
        "Transport": _text(target.get("transport")),
        "Prompts": _text(meta.plan.get("prompt_source")),
        "Machine": ", ".join(
            _text(meta.host.get(name)) for name in ("cpu", "cores", "kernel", "platform") if meta.host.get(name)
        )
        or "-",
        "Versions": ", ".join(f"{clean(name, 30)} {clean(version, 30)}" for name, version in meta.versions.items()) or "-",
        "Complete": "yes" if meta.complete else "no",
    }


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return clean(", ".join(f"{name} {_text(inner)}" for name, inner in value.items() if inner is not None), 400) or "-"
    return ("on" if value else "off") if isinstance(value, bool) else clean(value, 80)
