import math
from pathlib import Path

import pytest

from longbench_sched.errors import UsageError
from longbench_sched.slo import Slo
from longbench_sched.workload.arrivals import Burst, Constant, Gamma, Poisson, RateStage
from longbench_sched.workload.lengths import Fixed, Uniform
from longbench_sched.workload.overrides import Overrides, apply
from longbench_sched.workload.shape import ClosedLoad, ConcurrencyStage, LaneSpec, OpenLoad, Workload
from longbench_sched.workload.spec import read_workload

SIZES = "isl = 1000\nosl = 10\n"
CLOSED = SIZES + "concurrency = 8\nrequests = 9\n"
OPEN = SIZES + 'rate = "2/s"\nduration = "30s"\n'
RAMP = SIZES + "[[stage]]\nconcurrency = 2\nduration = 10\n[[stage]]\nconcurrency = 4\nduration = 20\n"
LANES = f'duration = 60\n[[lane]]\nname = "a"\n{SIZES}concurrency = 8\n[[lane]]\nname = "b"\n{SIZES}rate = 1\n'


def changed(text: str, **flags: object) -> Workload:
    return apply(read_workload(text, "mine", "mine.toml", Path()), Overrides(**flags))  # type: ignore[arg-type]


def lane(text: str, **flags: object) -> LaneSpec:
    return changed(text, **flags).lanes[0]


def test_no_flags_change_nothing() -> None:
    workload = read_workload(CLOSED, "mine", "mine.toml", Path())
    assert apply(workload, Overrides()) is workload


def test_lengths_numbers_and_limits_are_replaced() -> None:
    workload = changed(CLOSED, isl="512..1024", osl=7, num_prompts=5, num_warmups=0, prompts="stdlib", slo=Slo(ttft_s=3.0))
    assert workload.lanes[0].isl == Uniform(512, 1024)
    assert workload.lanes[0].osl == Fixed(7)
    assert workload.lanes[0].requests == 5
    assert (workload.warmups, workload.prompts, workload.slo) == (0, "stdlib", Slo(ttft_s=3.0))
    assert workload.notes == ()


def test_the_flags_are_written_below_the_text_as_comments() -> None:
    text = changed(CLOSED, isl="30k", num_prompts=5, slo=Slo(ttft_s=3.0, tpot_s=0.05)).text
    assert text == CLOSED + "\n# From the command line:\n# --isl 30k\n# --num-prompts 5\n# --goodput ttft:3000 tpot:50\n"
    assert read_workload(text, "mine", "mine.toml", Path()).lanes[0].isl == Fixed(1000)


def test_concurrency_replaces_concurrency() -> None:
    workload = changed(CLOSED, concurrency=16)
    assert workload.lanes[0].load == ClosedLoad((ConcurrencyStage(16),))
    assert workload.notes == ()


def test_concurrency_closes_an_open_loop_and_says_so() -> None:
    workload = changed(OPEN, concurrency=16)
    assert workload.lanes[0].load == ClosedLoad((ConcurrencyStage(16),))
    assert workload.notes == ("--concurrency 16 made the open loop a closed one",)


def test_concurrency_over_a_ramp_keeps_its_length() -> None:
    workload = changed(RAMP, concurrency=16)
    assert workload.lanes[0].load == ClosedLoad((ConcurrencyStage(16),))
    assert workload.lanes[0].duration_s == 30.0
    assert workload.notes == ("--concurrency 16 replaced the ramp",)


def test_a_rate_opens_a_closed_loop_and_says_so() -> None:
    workload = changed(CLOSED, request_rate="30/min")
    assert workload.lanes[0].load == OpenLoad(Poisson(), (RateStage(0.5),))
    assert workload.lanes[0].requests == 9
    assert workload.notes == ("--request-rate 30/min made the closed loop an open one",)


def test_a_rate_keeps_the_process_and_the_cap_of_an_open_loop() -> None:
    text = SIZES + 'arrivals = "constant"\nrate = 2\nrequests = 3\nmax_in_flight = 5\n'
    assert lane(text, request_rate=1.0).load == OpenLoad(Constant(), (RateStage(1.0),), 5)


@pytest.mark.parametrize("rate", ["inf", float("inf")])
def test_an_infinite_rate_is_a_burst(rate: object) -> None:
    assert lane(CLOSED, request_rate=rate, max_concurrency=4).load == OpenLoad(Burst(), (), 4)


@pytest.mark.parametrize(
    ("flags", "process"),
    [
        pytest.param({"cv": 3.0}, Gamma(3.0), id="cv"),
        pytest.param({"cv": 1.0}, Poisson(), id="cv 1 is Poisson"),
        pytest.param({"cv": 0.0}, Constant(), id="cv 0 is constant"),
        pytest.param({"burstiness": 1.0}, Poisson(), id="burstiness 1 is Poisson"),
        pytest.param({"burstiness": 0.25}, Gamma(2.0), id="burstiness is 1 over cv squared"),
    ],
)
def test_c13_burstiness_and_cv_spread_the_arrivals(flags: dict[str, float], process: object) -> None:
    assert lane(OPEN, **flags).load == OpenLoad(process, (RateStage(2.0),))  # type: ignore[arg-type]
    assert lane(CLOSED, request_rate=2, **flags).load == OpenLoad(process, (RateStage(2.0),))  # type: ignore[arg-type]


def test_a_number_of_prompts_replaces_a_duration_and_says_so() -> None:
    workload = changed(OPEN, num_prompts=5)
    assert (workload.lanes[0].requests, workload.lanes[0].duration_s) == (5, None)
    assert workload.notes == ("--num-prompts 5 replaced the duration, 30 s",)


def test_a_duration_replaces_a_number_of_requests() -> None:
    assert (lane(CLOSED, duration="20s").requests, lane(CLOSED, duration="20s").duration_s) == (None, 20.0)


def test_a_number_and_a_duration_both_hold() -> None:
    both = lane(OPEN, num_prompts=5, duration="20s")
    assert (both.requests, both.duration_s) == (5, 20.0)


def test_a_duration_leaves_a_burst_its_number() -> None:
    burst = lane(SIZES + 'arrivals = "burst"\nrequests = 7\n', duration=9)
    assert (burst.requests, burst.duration_s) == (7, 9.0)


def test_of_several_lanes_the_flag_means_the_only_one_with_such_a_load() -> None:
    assert changed(LANES, concurrency=3).lanes[0].load == ClosedLoad((ConcurrencyStage(3),))
    assert changed(LANES, request_rate=3).lanes[1].load == OpenLoad(Poisson(), (RateStage(3.0),))
    assert [lane.duration_s for lane in changed(LANES, duration="9s").lanes] == [9.0, 9.0]


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        pytest.param(CLOSED, {"num_prompts": 0}, "--num-prompts: 0 is too small. Give 1 or more.", id="0 requests"),
        pytest.param(CLOSED, {"concurrency": 0}, "--concurrency: 0 is too small", id="0 in flight"),
        pytest.param(CLOSED, {"num_warmups": -1}, "--num-warmups: -1 is too small", id="-1 warm-ups"),
        pytest.param(CLOSED, {"isl": "x"}, "--isl: 'x' is not a whole number", id="isl"),
        pytest.param(CLOSED, {"request_rate": "x"}, "--request-rate: 'x' is not a rate", id="rate"),
        pytest.param(CLOSED, {"request_rate": 0.0}, "--request-rate: 0 is not a finite number above 0", id="rate 0"),
        pytest.param(CLOSED, {"duration": "-3"}, "--duration: '-3' is not a duration", id="time"),
        pytest.param(
            CLOSED, {"concurrency": 1, "request_rate": 1}, "--concurrency is a closed loop and --request-rate", id="both"
        ),
        pytest.param(CLOSED, {"concurrency": 1, "max_concurrency": 1}, "--max-concurrency caps an open loop", id="both caps"),
        pytest.param(
            CLOSED, {"max_concurrency": 4}, "the workload is a closed one with 8 in flight. Use --concurrency", id="cap"
        ),
        pytest.param(
            CLOSED, {"cv": 2.0}, "--cv spreads the arrivals of an open loop, and the workload is a closed one", id="cv"
        ),
        pytest.param(OPEN, {"cv": 2.0, "burstiness": 1.0}, "give one of them", id="cv twice"),
        pytest.param(OPEN, {"cv": 11.0}, "--cv: a CV of 11 is more than 10", id="absurd cv"),
        pytest.param(OPEN, {"burstiness": 1e300}, "--burstiness: a CV of 1e-150 is next to none", id="no spread"),
        pytest.param(OPEN, {"burstiness": 0.0}, "--burstiness: 0 is not a finite number above 0", id="burstiness 0"),
        pytest.param(OPEN, {"request_rate": math.inf, "cv": 2.0}, "there are no gaps for --cv", id="burst with cv"),
        pytest.param(
            LANES, {"isl": 5}, "--isl does not say which lane it means: this workload has a, b", id="isl of which lane"
        ),
        pytest.param(LANES, {"num_prompts": 5}, "--num-prompts does not say which lane", id="prompts of which lane"),
    ],
)
def test_flags_that_do_not_fit_are_refused(text: str, flags: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        changed(text, **flags)
    assert message in str(caught.value)
