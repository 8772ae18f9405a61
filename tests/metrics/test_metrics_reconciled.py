"""What other tools' own code said of runs of awkward answers, and what our conventions say of the same runs.

The files in `reconciled/` were written by `python -m benchmarks.reconcile --write FOLDER`: the rows of a measured run, and the
figures that the code of a tool gave when it was fed the same events.
"""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from handmade import START_NS, run_of

from benchmarks.reconcile.__main__ import LOOSE, RELATIVE, ROUTES, rows_of
from longbench_sched.metrics.conventions import convert
from longbench_sched.record import Decoded, Reason, Status, StreamRecord
from longbench_sched.run import Run

FILES = Path(__file__).parent / "reconciled"
ON_DECODED = ("first_byte_ns", "answer_at_ns", "finish_ns", "n_comments", "prompt_tokens", "output_tokens", "reasoning_tokens")


def read(tool: str) -> dict[str, Any]:
    """What a tool said."""
    return json.loads((FILES / f"{tool}.json").read_text())


def record(row: dict[str, Any]) -> StreamRecord:
    """A row as it was stored."""
    at = {key: value + START_NS if key.endswith("_ns") and key != "chunk_at_ns" else value for key, value in row.items()}
    decoded = Decoded(
        chunk_at_ns=array("q", [START_NS + at_ns for at_ns in row["chunk_at_ns"]]),
        chunk_tokens=array("i", row["chunk_tokens"]),
        chunk_lateness_ns=array("q", [0] * len(row["chunk_at_ns"])),
        status=Status(row["status"]),
        reason=Reason(row["reason"]) if row["reason"] else None,
        error_code=row.get("error_code"),
        **{name: at[name] for name in ON_DECODED if name in at},
    )
    return StreamRecord(
        request_id=row["request_id"],
        index=0,
        phase=row["phase"],
        lane=row["lane"],
        decoded=decoded,
        **{name: at[name] for name in ("due_ns", "slot_ns", "isl", "osl", "sent_ns", "end_ns")},
        http_status=at.get("http_status"),
    )


def run_from(case: dict[str, Any]) -> Run:
    """The run of a case."""
    return run_of(map(record, case["rows"]), target={"engine": case["engine"], "api": case["api"]})


CASES = [pytest.param(tool, api, id=f"{tool}-{api}") for tool, (_, apis) in ROUTES.items() for api in apis]


@pytest.mark.parametrize(("tool", "api"), CASES)
def test_a_tools_own_code_gives_the_figures_of_our_conventions(tool: str, api: str) -> None:
    (case,) = (case for case in read(tool)["cases"] if case["api"] == api)
    ours = {figure.name: figure for figure in convert(run_from(case), tool).figures}
    assert set(ours) == set(case["figures"])
    for name, theirs in case["figures"].items():
        for share, value in theirs.items():
            found = getattr(ours[name], share)
            assert found == pytest.approx(value, rel=LOOSE.get(name, RELATIVE), abs=1e-9), f"{name} {share}"


@pytest.mark.parametrize(("tool", "api"), CASES)
def test_the_stored_runs_hold_what_is_awkward(tool: str, api: str) -> None:
    (case,) = (case for case in read(tool)["cases"] if case["api"] == api)
    reasons = {row["reason"] for row in case["rows"]}
    assert {"http-status", "cut", "in-band-error", "timeout-idle", "empty-stream", "no-finish", "bad-finish"} <= reasons
    tokens = [row["chunk_tokens"] for row in case["rows"]]
    assert max(map(max, filter(None, tokens))) > 1
    assert any(len(chunks) == 1 and chunks[0] > 1 for chunks in tokens)
    assert any(row.get("n_comments") for row in case["rows"])
    assert list(rows_of(run_from(case))) == case["rows"]
