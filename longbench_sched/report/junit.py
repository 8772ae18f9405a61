"""Verdict -> JUnit XML, which every CI system shows: one test case a rule.

A rule that is not decided is an error, not a failure: the build is not known to be worse, and not known to be fine.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from longbench_sched.compare.gate import Finding, Verdict
from longbench_sched.errors import UsageError
from longbench_sched.report.layout import TIE, Page
from longbench_sched.report.untrusted import clean
from longbench_sched.report.verdict import allowed_text
from longbench_sched.report.versus import change_text, interval_text, value_text


def render(page: Page) -> str:
    """The XML of a check. Raises UsageError for any other page."""
    if page.verdict is None:
        raise UsageError("JUnit XML is the form of a check only. Export .md, .csv or .json.")
    verdict, is_empty = page.verdict, not page.verdict.findings
    suite = ET.Element(
        "testsuite",
        name=f"longbench-sched check: {_plain(page.title)}",
        tests=str(len(verdict.findings) or 1),
        failures=str(sum(finding.status == "fail" for finding in verdict.findings)),
        errors=str(sum(finding.status == "inconclusive" for finding in verdict.findings) + is_empty),
    )
    if is_empty:  # a suite without a case is green everywhere
        case = ET.SubElement(suite, "testcase", classname="check", name="rules")
        ET.SubElement(case, "error", message=_plain(" ".join(("No rule was held against anything.", *verdict.notes))))
    for finding in verdict.findings:
        _add(suite, verdict, finding)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _add(suite: ET.Element, verdict: Verdict, finding: Finding) -> None:
    window = f".{finding.window}" if finding.window.startswith("lane ") else ""
    case = ET.SubElement(
        suite, "testcase", classname=_plain(clean(finding.cell) + window), name=_plain(finding.rule.figure.key)
    )
    if finding.status == "pass":
        return
    element = ET.SubElement(case, "failure" if finding.status == "fail" else "error", message=_plain(said(finding)))
    element.text = _plain(f"{verdict.candidate.name} against {verdict.base.name}: {said(finding)}")


def said(finding: Finding) -> str:
    """One line on what a rule found."""
    if finding.because:
        return f"{finding.rule.figure.title}: {finding.because}"
    figure, allowed = finding.rule.figure, allowed_text(finding.rule)
    if finding.delta is None:
        return f"{figure.title} {value_text(figure, finding.value)}, allowed {allowed}"
    decided = f"; about {finding.runs_to_decide} runs a side would decide" if finding.runs_to_decide else ""
    return (
        f"{figure.title} {change_text(finding.delta)} (95 % interval {interval_text(finding.delta)}), "
        f"allowed {allowed}{decided}"
    )


def _plain(text: str) -> str:
    return clean(text.replace(TIE, " "), 500)
