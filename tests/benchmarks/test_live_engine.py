"""Against a live engine, vLLM or any server that takes its fields: set LONGBENCH_ENGINE_URL (`make engines` brings one up)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.engines.__main__ import SMOKES, wrong_counts
from longbench_sched.cli.app import main
from longbench_sched.store.parquet import read_run

URL = os.environ.get("LONGBENCH_ENGINE_URL", "")

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not URL, reason="LONGBENCH_ENGINE_URL is not set; it names a live engine, for example of make engines"),
]


@pytest.mark.parametrize("name", SMOKES)
def test_every_prompt_and_answer_has_exactly_the_tokens_asked_for(name: str, tmp_path: Path) -> None:
    sizes = ["--isl", "512", "--osl", "16", "--num-prompts", "4", "--concurrency", "2", "--num-warmups", "1"]
    flags = [*SMOKES[name], *sizes, "--output-dir", str(tmp_path)]
    assert main(["run", "smoke", "--engine", "vllm", "--base-url", URL, *flags]) == 0
    [path] = tmp_path.glob("*.parquet")
    run = read_run(path)
    assert wrong_counts(run, 4) == []
    assert set(run.table.texts["chunk_token_source"]) <= {"ids", "usage"}


def test_a_model_that_is_not_served_is_an_error_that_names_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", "no-such-model", "--output-dir", str(tmp_path)]
    assert main(["run", "smoke", "--engine", "vllm", "--base-url", URL, *flags]) == 4
    assert "serves no model 'no-such-model'. Known:" in capsys.readouterr().err
