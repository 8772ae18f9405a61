from array import array
from pathlib import Path

import pytest

from longbench_sched.errors import WorkloadError
from longbench_sched.plan import ClosedLoop, ConcurrencyStep, LengthFacts, OpenLoop, Plan
from longbench_sched.workload.build import build_plan
from longbench_sched.workload.overrides import Overrides, apply
from longbench_sched.workload.preview import preview
from longbench_sched.workload.prompt import PromptMaker
from longbench_sched.workload.spec import read_workload
from longbench_sched.workload.tokens import LocalTokenizer

SIZES = "isl = 32\nosl = 8\n"


def plan(text: str, seed: int = 0, **flags: object) -> Plan:
    workload = apply(read_workload(text, "mine", "mine.toml", Path()), Overrides(**flags))  # type: ignore[arg-type]
    return build_plan(workload, seed, PromptMaker())


# Seed 0, token ids. A change here changes what every user sends: say so in CHANGELOG.md.
GOLDEN = {
    "30k-500-c64": "e85d0736f83092c536e4a721b72a72c4daff11a1786d93debd7ac8eeb6dbd967",
    "30k-500-r1": "3369bc95db012d499e6a2ae0415dbe76ca143b8ab24c2de09b5788be422d540b",
    "context-ladder": "9d56a43f6d5db74e97e9d322553bab4f3127412967c5e2ff24428f31cd0d36ce",
    "decode-heavy": "2861d204d937a144d6438448b041beebda99bb4bee101ecb44b980caa763cdbd",
    "interference": "a4aaf110ef1bbd8abf6e715bbce748c958bf9f306a30e24f136e7712be8c5e8a",
    "prefill-heavy": "a4d6e37aab96fd04eef75def4a73e512ca074daf161dab6fa6b724b91349a35c",
    "smoke": "98fcd615ed0a8ec7d95296aec08a6e71aee313b33f90ea03f95b4b6dc73a77d7",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_digest_of_a_shipped_workload_is_the_same_on_any_machine(name: str) -> None:
    assert preview(name).digest == GOLDEN[name]


def test_a_plan_is_the_same_again() -> None:
    text = SIZES + "concurrency = 2\nrequests = 5\n"
    assert plan(text) == plan(text)
    assert plan(text).digest != plan(text, seed=1).digest


def test_the_schedule_digest_is_common_to_ids_and_text(tokenizer: LocalTokenizer) -> None:
    workload = read_workload("isl = 32\nosl = { min = 1, max = 9 }\nrate = 2\nrequests = 5\n", "mine", "mine.toml", Path())
    plans = [build_plan(workload, 0, maker) for maker in (PromptMaker(), PromptMaker("chat", tokenizer))]
    assert len({p.extra["schedule_digest"] for p in plans}) == 1
    assert len({p.digest for p in plans}) == 2


def test_prompts_that_are_lengths_hold_no_tokens_and_are_known_by_the_schedule() -> None:
    text = "isl = 32\nosl = 8\nconcurrency = 2\nrequests = 5\nshared_prefix = 8\n"
    workload = read_workload(text, "mine", "mine.toml", Path())
    full, lengths = (build_plan(workload, 0, PromptMaker(form)) for form in ("ids", "lengths"))
    assert [(r.id, r.isl, r.osl, r.due_s, r.shared_prefix) for r in lengths.requests] == [
        (r.id, r.isl, r.osl, r.due_s, r.shared_prefix) for r in full.requests
    ]
    assert {len(r.prompt) for r in (*lengths.requests, *lengths.warmups)} == {0}
    assert {r.shared_prefix for r in lengths.requests} == {8}
    assert lengths.digest == full.extra["schedule_digest"]
    assert (lengths.prompt_source, lengths.extra["prompt_form"]) == ("lengths only", "lengths")


def test_lengths_alone_may_be_more_tokens_than_a_plan_could_hold() -> None:
    workload = read_workload("isl = 1000000\nosl = 8\nconcurrency = 2\nrequests = 300\n", "mine", "mine.toml", Path())
    assert len(build_plan(workload, 0, PromptMaker("lengths")).requests) == 300
    with pytest.raises(WorkloadError, match="302000000"):
        build_plan(workload, 0, PromptMaker())


@pytest.mark.parametrize(
    "other",
    [
        pytest.param("isl = 33\nosl = 8\nconcurrency = 2\nrequests = 5\n", id="isl"),
        pytest.param("isl = 32\nosl = 9\nconcurrency = 2\nrequests = 5\n", id="osl"),
        pytest.param(SIZES + "concurrency = 3\nrequests = 5\n", id="concurrency"),
        pytest.param(SIZES + "concurrency = 2\nrequests = 6\n", id="requests"),
        pytest.param(SIZES + "rate = 2\nrequests = 5\n", id="loop"),
        pytest.param(SIZES + 'concurrency = 2\nrequests = 5\nduration = "9s"\n', id="duration"),
        pytest.param(SIZES + "concurrency = 2\nrequests = 5\n[sampling]\nignore_eos = false\n", id="sampling"),
        pytest.param(SIZES + "concurrency = 2\nrequests = 5\nwarmups = 1\n", id="warm-ups"),
        pytest.param(SIZES + "concurrency = 2\nrequests = 5\nshared_prefix = 16\n", id="shared prefix"),
    ],
)
def test_whatever_is_sent_enters_the_digest(other: str) -> None:
    assert plan(other).digest != plan(SIZES + "concurrency = 2\nrequests = 5\n").digest


def test_c14_a_closed_loop_keeps_64_in_flight() -> None:
    """C-14: 64 users, 256 requests."""
    made = plan(SIZES + "concurrency = 64\nrequests = 256\n")
    assert made.lanes[0].loop == ClosedLoop((ConcurrencyStep(0.0, 64),))
    assert len(made.requests) == 256
    assert made.peak_in_flight == 64
    assert all(request.due_s is None for request in made.requests)


def test_a_closed_ramp_steps_up_at_stated_times() -> None:
    stages = "".join(f"[[stage]]\nconcurrency = {c}\nduration = {d}\n" for c, d in ((2, 10), (4, 20), (8, 30)))
    made = plan(SIZES + "max_requests = 50\n" + stages)
    assert made.lanes[0].loop == ClosedLoop((ConcurrencyStep(0.0, 2), ConcurrencyStep(10.0, 4), ConcurrencyStep(30.0, 8)))
    assert made.lanes[0].duration_s == 60.0
    assert len(made.requests) == 50


def test_an_open_loop_has_absolute_due_times() -> None:
    made = plan(SIZES + 'arrivals = "constant"\nrate = 4\nduration = "2s"\nmax_in_flight = 3\n')
    assert [request.due_s for request in made.requests] == [i / 4 for i in range(8)]
    assert made.lanes[0].loop == OpenLoop("constant", 4.0, 3)
    assert made.extra["main.realised_rate_per_s"] == "4"
    assert made.extra["main.realised_cv"] == "0"


def test_c13_the_realised_cv_is_kept_with_the_plan() -> None:
    """C-13: rate 10/s, CV 3, 1000 requests, seed 3."""
    made = plan(SIZES + "cv = 3\nrate = 10\nrequests = 1000\n", seed=3)
    assert abs(float(made.extra["main.realised_rate_per_s"]) / 10 - 1) < 0.1
    assert abs(float(made.extra["main.realised_cv"]) / 3 - 1) < 0.15
    assert [r.due_s for r in made.requests] == [
        r.due_s for r in plan(SIZES + "cv = 3\nrate = 10\nrequests = 1000\n", 3).requests
    ]


def test_an_open_ramp_says_its_mean_rate() -> None:
    made = plan(SIZES + "[[stage]]\nrate = 1\nduration = 10\n[[stage]]\nrate = 3\nduration = 10\n")
    assert len(made.requests) == 40
    assert made.lanes[0].loop == OpenLoop("poisson", 2.0, None)


def test_requests_and_time_end_a_lane_whichever_comes_first() -> None:
    text = SIZES + "rate = 4\n"
    assert len(plan(text + "requests = 5\nduration = 10\n").requests) == 5
    assert len(plan(text + "requests = 50\nduration = 10\n").requests) == 40


def test_lanes_are_numbered_and_share_one_count() -> None:
    made = plan(
        f'duration = 4\n[[lane]]\nname = "a"\n{SIZES}concurrency = 2\nmax_requests = 3\n'
        '[[lane]]\nname = "b"\nisl = 64\nosl = 1\nevery = 2\n'
    )
    assert [(r.id, r.lane, r.isl) for r in made.requests] == [
        ("r0", 0, 32),
        ("r1", 0, 32),
        ("r2", 0, 32),
        ("r3", 1, 64),
        ("r4", 1, 64),
    ]
    assert [(w.id, w.isl) for w in made.warmups] == [("w5", 32), ("w6", 64), ("w7", 32)]
    assert made.isl == LengthFacts(nominal_mean=44.8, mean=44.8, min=32, max=64)


def test_a_closed_loop_limited_by_time_has_prompts_to_spare_and_says_how_many() -> None:
    """4 in flight for 10 s, none faster than 20 ms: 2000."""
    made = plan(SIZES + 'concurrency = 4\nduration = "10s"\n')
    assert len(made.requests) == 2000
    assert made.notes == ("lane main: 2000 prompts are made for 10 s; set max_requests if it ends before its time",)


def test_prompts_to_spare_are_bounded_by_memory() -> None:
    made = plan('isl = "1Mi"\nosl = 8\nconcurrency = 2\nduration = "1h"\nwarmups = 0\n')
    assert len(made.requests) == 8  # 8 Mi tokens


def test_a_loop_that_never_fills_says_so() -> None:
    made = plan(SIZES + "concurrency = 64\nrequests = 8\n")
    assert made.notes == ("lane main: 8 requests never fill 64 places in flight",)
    assert made.peak_in_flight == 8


def test_a18_a_mean_under_the_nominal_length_is_said() -> None:
    """A-18: nominal 8192, range 0.8 to 1.0: mean about 7373, -10 %."""
    made = plan("isl = { min = 6554, max = 8192, nominal = 8192 }\nosl = 8\nconcurrency = 2\nrequests = 100\n")
    assert abs(made.isl.mean - 7373) < 10
    assert made.isl.nominal_mean == 8192
    assert made.notes == (f"ISL mean {made.isl.mean:.0f}, -10 % vs nominal 8192",)


def test_a17_the_realised_mean_stands_beside_the_nominal_one() -> None:
    """A-17: 512..1024, 1000 prompts, seed 1: 768 +- 10."""
    made = plan("isl = { min = 512, max = 1024 }\nosl = 8\nconcurrency = 2\nrequests = 1000\n", seed=1)
    assert abs(made.isl.mean - 768) < 10
    assert (made.isl.nominal_mean, made.notes) == (768.0, ())
    assert made.isl.min >= 512
    assert made.isl.max <= 1024


def test_a12_warm_ups_are_on_by_default_and_short() -> None:
    """A-12: one a place in flight up to 4, as long as the measured prompts, with few output tokens."""
    made = plan("isl = 32\nosl = 500\nconcurrency = 64\nrequests = 64\n")
    assert [(w.isl, w.osl, w.phase) for w in made.warmups] == [(32, 32, "warmup")] * 4
    assert made.warmup_concurrency == 4
    assert plan(SIZES + "concurrency = 1\nrequests = 5\n").warmup_concurrency == 1


def test_prompts_are_arrays_of_four_bytes_a_token() -> None:
    prompt = plan(SIZES + "concurrency = 1\nrequests = 1\n").requests[0].prompt
    assert isinstance(prompt, array)
    assert (prompt.typecode, prompt.itemsize) == ("I", 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(SIZES + 'rate = "1/h"\nduration = "1s"\n', "no request falls into 1 s at that rate", id="nothing to send"),
        pytest.param(SIZES + 'rate = 1000000\nduration = "1h"\n', "are more than the 1048576 a plan may hold", id="too many"),
        pytest.param(
            SIZES + "rate = 1e-8\nrequests = 9\n", "the last of 9 requests would be due after", id="due when nobody lives"
        ),
        pytest.param(
            "warmups = 2000000\n" + SIZES + "concurrency = 1\nrequests = 1\n", "warmups: 2000000 are more", id="warm-ups"
        ),
        pytest.param(
            'isl = "1Mi"\nosl = 1\nconcurrency = 1\nrequests = 1000\n', "prompt tokens, more than the", id="too large"
        ),
        pytest.param(
            SIZES + "concurrency = 1\nrequests = 1\nshared_prefix = 32\n",
            "shared_prefix is 32 but a prompt has 32",
            id="prefix",
        ),
    ],
)
def test_impossible_plans_are_refused(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=f"^mine.toml: .*{message}"):
        plan(text)


def test_a_seed_that_no_file_could_hold_is_refused() -> None:
    with pytest.raises(WorkloadError, match="--seed 18446744073709551616 has more than 64 bits"):
        plan(SIZES + "concurrency = 1\nrequests = 1\n", seed=2**64)


def test_a_preview_says_what_would_be_sent() -> None:
    shown = preview("30k-500-r1", n_rows=2)
    lane = shown.lanes[0]
    assert (lane.load, lane.n, lane.prompt_tokens, lane.output_tokens) == ("open loop, poisson, 1/s", 64, 1_920_000, 32_000)
    assert (shown.prompt_tokens, shown.output_tokens) == (1_920_000, 32_000)
    assert (shown.rows[0].id, shown.rows[0].due_s, shown.rows[0].isl) == ("r0", 0.0, 30_000)
    assert len(shown.rows) == 2
    assert lane.last_due_s is not None
    assert 55 < lane.last_due_s < 64
    assert preview("smoke").lanes[0].last_due_s is None


def test_a_preview_shows_each_lane() -> None:
    shown = preview("interference", overrides=Overrides(duration="12s"), n_rows=1)
    assert [(lane.name, lane.duration_s) for lane in shown.lanes] == [("decode", 12.0), ("prefill", 12.0)]
    assert [row.lane for row in shown.rows] == ["decode", "prefill"]
    assert [lane.realised_rate_per_s for lane in shown.lanes] == [None, 0.25]
