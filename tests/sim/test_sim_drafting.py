"""Speculation inside an engine: method by flags, tokens by steps, memory, determinism."""

from __future__ import annotations

import math

import pytest
from checked_engine import Arrival, vllm
from checked_engine import drive as drive_checked

from longbench_sched.errors import UsageError
from longbench_sched.sim.acceptance import distribution, expected_tokens
from longbench_sched.sim.drafting import build_speculating, speculator_of
from longbench_sched.sim.engine import Engine, build_engine
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.models import MODELS
from longbench_sched.sim.speculation import Wish

H200, LLAMA, SMALL = GPUS["H200"], MODELS["Llama-3.1-8B"], MODELS["Qwen3-8B"]
EAGLE3 = ("--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}')


def engine(name: str, *flags: str, wish: Wish | None = None, seed: int = 0) -> Engine:
    return build_speculating(name, H200, LLAMA, read_flags(name, flags), wish=wish, seed=seed)


def drive(one: Engine, osl: int = 60) -> list[int]:
    """One request to its end; the tokens of each step that gave any."""
    one.submit(500, osl, 0.0)
    now_s, given = 0.0, []
    while (seconds := one.begin(now_s)) is not None:
        now_s += seconds
        given += [sequence.yielded_now for sequence in one.end(now_s)]
    return given


@pytest.mark.parametrize(
    ("name", "flags", "method", "tokens"),
    [
        pytest.param("vllm", EAGLE3, "eagle3", 4, id="vllm: a chain of three and the token itself"),
        pytest.param("vllm", ("--num-speculative-tokens", "5"), "ngram", 6, id="vllm: n-gram by default"),
        pytest.param(
            "vllm",
            ("--speculative-config", '{"method": "eagle", "num_speculative_tokens": 3}'),
            "eagle",
            4,
            id="vllm: no trees",
        ),
        pytest.param("sglang", ("--speculative-algorithm", "EAGLE"), "eagle2", 4, id="sglang 0.5: top 1, a chain"),
        pytest.param("sglang-0.4", ("--speculative-algorithm", "EAGLE"), "eagle2", 64, id="sglang 0.4: a tree of 64"),
        pytest.param("trtllm", ("--num-speculative-tokens", "3"), "ngram", 4, id="trtllm without a draft model"),
    ],
)
def test_flags_choose_the_method_and_what_is_verified(name: str, flags: tuple[str, ...], method: str, tokens: int) -> None:
    speculator = engine(name, *flags).cost.speculator
    assert speculator is not None
    assert (speculator.method, speculator.verify_tokens) == (method, tokens)


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "vllm-v0", "orca"])
def test_without_speculation_it_is_the_plain_engine(name: str) -> None:
    one = engine(name)
    assert one.cost.speculator is None
    assert one.accepted is None
    assert one.state.kv.total == build_engine(name, H200, LLAMA, read_flags(name, ())).state.kv.total


@pytest.mark.parametrize(
    ("alpha", "steps"),
    [
        pytest.param(1.0, [1] + [4] * 14 + [3], id="all hold: 60 = 1 + 14 x 4 + 3"),
        pytest.param(0.0, [1] * 60, id="none holds"),
    ],
)
def test_sp1_a_step_gives_one_token_and_the_drafts_that_hold(alpha: float, steps: list[int]) -> None:
    assert drive(engine("vllm", *EAGLE3, wish=Wish(alpha=alpha))) == steps


def test_sp2_an_engine_accepts_what_the_closed_form_says() -> None:
    """SP-2: 1 + 0.6 + 0.6^2 + 0.6^3 = 2.176 tokens a verification; sigma^2 of one is E[n^2] - E^2, of the mean 1 / n of it."""
    one = engine("vllm", *EAGLE3, wish=Wish(alpha=0.6))
    drive(one, 8000)
    n, chances = one.counters.n_verified, distribution(0.6, 3)
    sigma = math.sqrt(sum((j + 1) ** 2 * p for j, p in enumerate(chances)) - expected_tokens(0.6, 3) ** 2)
    assert n > 3000
    assert abs(1 + one.counters.accepted_tokens / n - expected_tokens(0.6, 3)) < 3 * sigma / math.sqrt(n)


@pytest.mark.parametrize(("accepted", "starts"), [(0, [10, 11, 12]), (1, [10, 12]), (2, [10])])
def test_sp4_rejected_drafts_are_computed_again(accepted: int, starts: list[int]) -> None:
    """SP-4: two drafts a step; the cache has one token more than were accepted when the next step begins."""
    drafting = vllm(num_speculative_tokens=2)
    drafting.accepted = lambda sequence, k: accepted
    plans = drive_checked(drafting, [Arrival(0, 10, 4)]).plans
    assert plans == [[(0, 10, 0, "prefill")], *([(0, 3, start, "verify")] for start in starts)]


def test_which_drafts_hold_follows_from_the_seed() -> None:
    first, again, other = (drive(engine("vllm", *EAGLE3, seed=seed), 200) for seed in (1, 1, 2))
    assert first == again != other
    assert sum(first) == 200
    assert set(first) <= {1, 2, 3, 4}


def test_a_drafter_leaves_less_memory_for_the_cache() -> None:
    """EAGLE-3 adds a layer's cache to the target's 32: at least 1 / 33 of the tokens are gone, and its weights on top."""
    plain = build_engine("vllm", H200, LLAMA, read_flags("vllm", ()))
    drafting, lookup = engine("vllm", *EAGLE3), engine("vllm", "--num-speculative-tokens", "3")
    assert lookup.state.kv.total == plain.state.kv.total
    share = drafting.state.kv.total / plain.state.kv.total
    assert 0.9 < share < 32 / 33
    assert drafting.gpu is H200


def test_a_drafter_is_built_beside_the_target_as_it_is_served() -> None:
    """fp8 weights: those of the drafter too, and a decode reads half of the cache."""
    plain, fp8 = engine("vllm", *EAGLE3), engine("vllm", *EAGLE3, "--quantization=fp8", "--kv-cache-dtype=fp8")
    assert (fp8.cost.model.weights, fp8.cost.model.kv_bytes) == ("fp8", 1)
    assert fp8.cost.draft_s(1, 100_000) < plain.cost.draft_s(1, 100_000)
    assert fp8.cost.decode_attention_s(1_000_000, 1.0) < 0.6 * plain.cost.decode_attention_s(1_000_000, 1.0)


def test_measured_acceptance_lengths_are_met() -> None:
    """2.5 tokens a step at 1,000 tokens and below; 1 from 2,000 on."""
    wish = Wish(lengths=((1000, 2.5), (2000, 1.0)))
    one = engine("vllm", *EAGLE3, wish=wish)
    given = drive(one, 400)  # of a prompt of 500
    assert sum(given) / len(given) == pytest.approx(2.5, rel=0.1)
    assert one.cost.speculator is not None
    assert one.cost.speculator.acceptance.expected(1000, 3) == pytest.approx(2.5)
    assert one.cost.speculator.acceptance.expected(5000, 3) == 1.0


@pytest.mark.parametrize(
    ("name", "flags", "wish", "said"),
    [
        pytest.param("vllm", EAGLE3, Wish(lengths=((2000, 2.0), (1000, 2.0))), "they rise", id="contexts that fall"),
        pytest.param("vllm", EAGLE3, Wish(lengths=((1000, 4.5),)), "1 to 4 tokens", id="more than the drafts and one"),
        pytest.param("vllm", EAGLE3, Wish(lengths=((1000, 0.5),)), "1 to 4 tokens", id="less than one"),
        pytest.param("vllm", EAGLE3, Wish(lengths=((1000, 2.0),), alpha=0.5), "Leave one", id="a rate as well"),
        pytest.param("vllm", EAGLE3, Wish(draft_model=SMALL), "without a model of its own", id="a model that would not draft"),
        pytest.param("sglang-0.4", ("--speculative-algorithm=EAGLE",), Wish(lengths=((1, 2.0),)), "a tree", id="a tree"),
    ],
)  # fmt: skip
def test_wishes_that_no_drafter_can_fulfil_are_refused(name: str, flags: tuple[str, ...], wish: Wish, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        engine(name, *flags, wish=wish)


def test_a_draft_model_must_be_named() -> None:
    flags = ("--speculative-config", '{"method": "draft_model", "num_speculative_tokens": 3}')
    with pytest.raises(UsageError, match="draft model"):
        engine("vllm", *flags)
    named = speculator_of(engine("vllm", *flags, wish=Wish(draft_model=SMALL)).options, LLAMA, Wish(draft_model=SMALL))
    assert named is not None
    assert named.method == "draft-model"
