import re
from pathlib import Path

import pytest

from longbench_sched.workload.catalogue import shipped_folder
from longbench_sched.workload.spec import read_workload

PAGE = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text("utf-8")


@pytest.mark.parametrize("example", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_the_examples_of_the_page_are_workloads(example: str) -> None:
    assert read_workload(example, "example", "docs/workloads.md", Path()).lanes


def test_the_page_lists_every_shipped_workload() -> None:
    listed = set(re.findall(r"^\| `([\w-]+)` \| .* \| .* \|$", PAGE.partition("## A file")[0], re.MULTILINE))
    assert listed == {path.stem for path in shipped_folder().glob("*.toml")}
