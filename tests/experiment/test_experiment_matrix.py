"""What an experiment holds, in which order it is run, and what each of its runs sends."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from longbench_sched.errors import UsageError
from longbench_sched.experiment.matrix import (
    Experiment,
    LoadSpec,
    TargetSpec,
    decode_experiment,
    encode_experiment,
    is_experiment,
    read_experiment,
    read_target_flag,
)
from longbench_sched.experiment.order import Cell, make_cells
from longbench_sched.plan import Plan
from longbench_sched.workload.build import build_plan
from longbench_sched.workload.overrides import Overrides
from longbench_sched.workload.prompt import PromptMaker
from longbench_sched.workload.spec import read_workload

CHUNKS = """
title = "Chunk sizes"
workload = "smoke"
repeats = 3
[[target]]
name = "a"
engine = "vllm"
base_url = "http://gpu7:8000"
gpus = 8
[[target]]
name = "b"
engine = "sglang"
embedded = true
set = { chunked_prefill_size = 2048, enable_mixed_chunk = true }
[[load]]
use = "30k-500-c64"
concurrency = [1, 8]
isl = "4Ki"
"""


def target(name: str, base_url: str = "http://gpu7:8000") -> TargetSpec:
    return TargetSpec(name, "vllm", "url", base_url)


def test_a_file_holds_targets_loads_and_repeats() -> None:
    experiment = read_experiment(CHUNKS, "chunks", "chunks.toml")
    assert [(t.name, t.kind, t.gpus, t.knobs) for t in experiment.targets] == [
        ("a", "url", 8, ()),
        ("b", "embedded", None, ("chunked_prefill_size=2048", "enable_mixed_chunk=true")),
    ]
    assert [load.label for load in experiment.loads] == [
        "smoke",
        "30k-500-c64 isl=4Ki concurrency=1",
        "30k-500-c64 isl=4Ki concurrency=8",
    ]
    assert experiment.loads[2].params == {"isl": 4096.0, "concurrency": 8.0}
    assert experiment.n_cells == 2 * 3 * 3
    assert decode_experiment(encode_experiment(experiment)) == experiment


def test_a_workload_is_no_experiment() -> None:
    assert is_experiment(CHUNKS)
    assert not is_experiment('title = "x"\nisl = 5\n')
    assert not is_experiment("[[target")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('base_url = "http://gpu7:8000"', ""), "say where a runs"),
        (("embedded = true", "embedded = true\nsimulated = true"), "exactly one of"),
        (('name = "b"', 'name = "a"'), "two named 'a'"),
        (('name = "b"', 'name = "b b"'), "is no name"),
        (('engine = "sglang"', ""), "b has no engine"),
        (("repeats = 3", "repeat = 3"), "Did you mean repeats"),
        (("concurrency = [1, 8]", "concurrency = [1, 1]"), "two named"),
        (("concurrency = [1, 8]", "concurrency = []"), "neither a number nor a list"),
        (("repeats = 3", "repeats = 100000"), "are more than"),
        (("gpus = 8", "set = { x = 1 }"), "is a running server"),
        (("gpus = 8", 'api_key = "x"'), "keys, tokens and headers do not belong"),
        (('workload = "smoke"', "workload = 3"), "is not a text"),
    ],
    ids=lambda value: value[1][:20] if isinstance(value, tuple) else "",
)
def test_a_file_that_makes_no_sense_is_answered_with_what_would(change: tuple[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^chunks.toml: .*{message}"):
        read_experiment(CHUNKS.replace(*change), "chunks", "chunks.toml")


def test_a_target_can_be_given_as_a_flag() -> None:
    spec = read_target_flag("fast=http://gpu7:8000/v1,engine=vllm,model=m,gpus=2,dollars_per_hour=4.5")
    assert (spec.name, spec.kind, spec.base_url, spec.model) == ("fast", "url", "http://gpu7:8000/v1", "m")
    assert (spec.gpus, spec.dollars_per_hour) == (2, 4.5)
    spec = read_target_flag("sim=simulated,engine=sglang,set.chunked_prefill_size=2048")
    assert (spec.kind, spec.knobs) == ("simulated", ("chunked_prefill_size=2048",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://gpu7:8000", "is not NAME=URL"),
        ("a b=http://gpu7:8000,engine=vllm", "'a b' is no name for a target"),
        ("../a=http://gpu7:8000,engine=vllm", "is no name for a target"),
        ("latest=http://gpu7:8000,engine=vllm", "'latest' means the newest run"),
        ("a=http://gpu7:8000", "a has no engine"),
        ("a=http://gpu7:8000,vllm", "is not KEY=VALUE"),
        ("a=http://gpu7:8000,engin=vllm", "Did you mean engine"),
        ("a=http://gpu7:8000,engine=vllm,gpus=two", "is not a whole number"),
        ("a=http://gpu7:8000,engine=vllm,gpus=0", "gpus: 0 is too small"),
        ("a=simulated,engine=vllm,api=y", "api: 'y' is not one of"),
        ("a=simulated,engine=vllm,count=x", "count: 'x' is not one of"),
        ("a=http://gpu7:8000,engine=vllm,time_scale=fast", "is not a number"),
    ],
)
def test_a_target_flag_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_target_flag(text)


def test_targets_alternate_in_blocks_and_repeats_are_the_outer_loop() -> None:
    experiment = Experiment("x", "x", (target("a"), target("b")), (LoadSpec("one"), LoadSpec("two")), repeats=2)
    assert [cell.key for cell in make_cells(experiment)] == [
        "a.one.1", "b.one.1", "a.two.1", "b.two.1",
        "b.one.2", "a.one.2", "b.two.2", "a.two.2",
    ]  # fmt: skip


def test_a_random_order_is_drawn_from_the_seed() -> None:
    def orders(seed: int) -> list[str]:
        targets = tuple(target(name) for name in "abcdef")
        return [
            c.key for c in make_cells(Experiment("x", "x", targets, (LoadSpec("w"),), repeats=3, seed=seed, order="random"))
        ]

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    firsts = [orders(1)[i].partition(".")[0] for i in (0, 6, 12)]
    assert len(set(firsts)) > 1
    assert sorted(orders(1)) == sorted(orders(2))


TINY = "isl = 16384\nosl = 4\nconcurrency = {}\nrequests = 16\nwarmups = 0\n"


def plan_of(cell: Cell) -> Plan:
    """What a run of that cell sends."""
    workload = read_workload(TINY.format(cell.load.overrides.get("concurrency", 4)), cell.load.use, "tiny.toml", Path())
    return build_plan(workload, cell.seed, PromptMaker("ids"), cell=cell.content, repeat=cell.repeat)


def first_tokens(plans: list[Plan]) -> list[tuple[int, ...]]:
    return [tuple(request.prompt[:16]) for plan in plans for request in plan.requests]


def test_a11_no_two_prompts_of_two_cells_begin_alike() -> None:
    """Concurrency 4 and 8, the same seed, 16 prompts of 16,384 tokens each."""
    loads = (LoadSpec("tiny", {"concurrency": 4}), LoadSpec("tiny", {"concurrency": 8}))
    cells = make_cells(Experiment("x", "x", (target("a"),), loads, repeats=1))
    begins = first_tokens([plan_of(cell) for cell in cells])
    assert len(begins) == 32
    assert all(one != other for one, other in combinations(begins, 2))


def test_a11_nor_do_those_of_two_repeats() -> None:
    cells = make_cells(Experiment("x", "x", (target("a"),), (LoadSpec("tiny"),), repeats=2))
    begins = first_tokens([plan_of(cell) for cell in cells])
    assert len(set(begins)) == 32


@pytest.mark.parametrize(
    ("urls", "is_same"),
    [
        (("http://a:1", "http://b:1"), True),
        (("http://a:1/x", "http://a:1/y"), True),
        (("http://a:1", "http://a:1"), False),
        (("http://a:8000", "http://A:8000/v1/"), False),
        (("http://localhost:8000", "http://127.0.0.1:8000"), False),
    ],
)
def test_a11_in_a_block_lengths_and_times_are_the_same_and_prompts_too_unless_a_server_is_shared(
    urls: tuple[str, str], is_same: bool
) -> None:
    targets = (target("a", urls[0]), target("b", urls[1]))
    one, other = (plan_of(cell) for cell in make_cells(Experiment("x", "x", targets, (LoadSpec("tiny"),), repeats=1)))
    assert one.extra["schedule_digest"] == other.extra["schedule_digest"]
    assert (one.digest == other.digest) is is_same
    assert bool(set(first_tokens([one])) & set(first_tokens([other]))) is is_same


def test_blocks_differ_in_lengths_and_times_only_if_asked_to() -> None:
    for vary, seeds in (("content", [5, 5, 5]), ("schedule", [5, 6, 7])):
        cells = make_cells(Experiment("x", "x", (target("a"),), (LoadSpec("w"),), 3, 5, vary=vary))  # type: ignore[arg-type]
        assert [cell.seed for cell in cells] == seeds


def test_loads_with_names_that_no_file_can_hold_are_told_apart() -> None:
    loads = tuple(LoadSpec(use) for use in ("w\u00f6.toml", "w\u00e4.toml", f"{'x' * 200}a.toml", f"{'x' * 200}b.toml"))
    cells = make_cells(Experiment("x", "x", (target("a"),), loads, repeats=1))
    assert [cell.key for cell in cells] == ["w-.1", "w-+2.1", f"{'x' * 80}.1", f"{'x' * 80}+2.1"]


def test_a_runs_place_is_stored_with_it() -> None:
    experiment = read_experiment(CHUNKS, "chunks", "chunks.toml")
    cell = next(cell for cell in make_cells(experiment) if cell.key.startswith("a.30k") and cell.block == 1)
    assert cell.facts("id") == {
        "id": "id",
        "target": "a",
        "target_place": 0,
        "cell": "30k-500-c64 isl=4Ki concurrency=1",
        "params": {"isl": 4096.0, "concurrency": 1.0},
        "block": 1,
        "place": 1,
        "gpus": 8,
    }


def test_the_changes_of_a_load_stand_over_those_of_the_command() -> None:
    load = LoadSpec("w", {"concurrency": 8})
    assert load.applied(Overrides(concurrency=2, osl=5)) == Overrides(concurrency=8, osl=5)
