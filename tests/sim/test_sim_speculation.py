"""Speculative methods: what each adds to memory, cache and time, and what tells it from its neighbour.

The target is Llama-3.1-8B: a layer has 4096 x 48 x 128 + 4096^2 + 3 x 4096 x 14336 = 218,103,808 parameters and 4096 bytes of
KV a token; the head has 4096 x 128256.
"""

from __future__ import annotations

import pytest

from longbench_sched.errors import UsageError
from longbench_sched.sim.acceptance import Chain, ContextRate, Tree
from longbench_sched.sim.bill import StepLoad
from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.models import MODELS, Gqa, Model
from longbench_sched.sim.speculation import METHODS, Speculator, Wish, find_speculator

H200, LLAMA = GPUS["H200"], MODELS["Llama-3.1-8B"]
SMALL = Model("Llama-3.2-1B", 16, 2048, Gqa(32, 8, 64), 8192, 128256, 131072, tied_embeddings=True)
LAYER, SQUARE, HEAD = 218_103_808, 4096**2, 4096 * 128_256
K128 = 131_072


def speculator(method: str, **wish) -> Speculator:
    return find_speculator(method, LLAMA, Wish(draft_model=SMALL, **wish))


def decoding(n: int, context: int, speculator: Speculator | None = None) -> StepLoad:
    tokens = n * (speculator.verify_tokens if speculator else 1)
    return StepLoad((), n, tokens, n * context)


@pytest.mark.parametrize(
    ("method", "own_weights", "kv_bytes", "passes", "verify"),
    [
        ("draft-model", 1_235_746_816, 32_768, 4, 5),
        ("ngram", 0, 0, 0, 6),
        ("medusa", 5 * (SQUARE + HEAD), 0, 1, 64),
        ("eagle", LAYER + 2 * SQUARE, 4096, 5, 26),
        ("eagle2", LAYER + 2 * SQUARE, 4096, 5, 64),
        ("eagle3", LAYER + 3 * SQUARE, 4096, 3, 4),
        ("eagle3.1", LAYER + 3 * SQUARE, 4096, 3, 4),
        ("mtp", LAYER + 2 * SQUARE, 4096, 1, 2),
        ("self", 0, 0, 4, 5),
        ("cascade", 1_235_746_816, 32_768, 6, 7),
    ],
)
def test_what_a_method_adds(method: str, own_weights: int, kv_bytes: int, passes: int, verify: int) -> None:
    one = speculator(method)
    assert one.own_weights == pytest.approx(own_weights, rel=1e-3)
    assert one.kv_bytes_per_token == kv_bytes
    assert one.drafter.passes == passes
    assert one.verify_tokens == verify == one.lookahead_tokens + 1
    assert one.source


def test_a_draft_model_drafts_with_work_and_a_lookup_without() -> None:
    costs = [StepCost(H200, LLAMA, speculator=speculator(name)) for name in ("draft-model", "ngram")]
    assert costs[0].draft_s(1, 1000) > 4 * 2.47e9 / 4.8e12, "four passes over 1.24e9 weights of 2 bytes"
    assert costs[1].draft_s(1, 1000) == 0
    assert costs[1].bill(decoding(8, 10, speculator("ngram"))).host_s > StepCost(H200, LLAMA).bill(decoding(8, 10)).host_s


def test_medusa_needs_one_pass_and_no_cache_where_eagle_needs_one_a_depth() -> None:
    medusa, eagle = speculator("medusa"), speculator("eagle")
    assert (medusa.drafter.layers, eagle.drafter.layers) == (0, 1)
    long, short = (StepCost(H200, LLAMA, speculator=one).draft_s(1, K128) for one in (eagle, medusa))
    assert long > StepCost(H200, LLAMA, speculator=eagle).draft_s(1, 1), "eagle reads its cache"
    assert short == StepCost(H200, LLAMA, speculator=medusa).draft_s(1, 1), "medusa has none"


def test_c20_eagle_is_a_head_of_its_own_and_self_speculation_borrows_the_targets_layers() -> None:
    eagle, own = speculator("eagle"), speculator("self")
    assert eagle.own_weights > 0 < eagle.kv_bytes_per_token
    assert own.own_weights == 0 == own.kv_bytes_per_token
    assert own.drafter.read_weights == pytest.approx(LLAMA.linear_weights() / 2 + HEAD, rel=1e-6)
    assert own.drafter.layers == 16
    assert speculator("self", layer_share=0.25, alpha=0.6).drafter.layers == 8


def test_eagle2_chooses_its_tree_by_confidence() -> None:
    """At the same number of nodes and the same alpha it accepts more than the fixed tree of EAGLE-1."""
    static, dynamic = speculator("eagle").acceptance, speculator("eagle2").acceptance
    assert isinstance(static, Tree)
    assert isinstance(dynamic, Tree)
    assert (static.is_dynamic, dynamic.is_dynamic) == (False, True)
    same = [Tree(tree.rate, 25, is_dynamic=tree.is_dynamic).expected(1000, 5) for tree in (static, dynamic)]
    assert same[1] > same[0]


def test_eagle3_fuses_three_levels_and_drafts_a_chain_where_eagle2_drafts_a_tree() -> None:
    two, three = speculator("eagle2"), speculator("eagle3")
    assert three.own_weights - two.own_weights == SQUARE
    assert (two.drafter.width, three.drafter.width) == (8, 1)
    assert isinstance(three.acceptance, Chain)
    assert three.acceptance.expected(1000, 3) == pytest.approx(1 + 0.75 + 0.75**2 + 0.75**3)


def test_eagle31_costs_what_eagle3_costs_and_says_that_it_is_a_claimed_maximum() -> None:
    three, newer = speculator("eagle3"), speculator("eagle3.1")
    assert newer.drafter == three.drafter
    assert (three.is_claimed_maximum, newer.is_claimed_maximum) == (False, True)
    assert "claimed maximum" in newer.source
    for context, ratio in ((2048, 1.0), (K128, 2.0)):
        gains = [one.acceptance.expected(context, 3) - 1 for one in (three, newer)]
        assert gains[1] / gains[0] == pytest.approx(ratio)


def test_mtp_has_a_module_a_depth_where_eagle_repeats_one() -> None:
    modules = speculator("mtp", n_drafts=3)
    assert modules.own_weights == 3 * (LAYER + 2 * SQUARE)
    assert modules.kv_bytes_per_token == 3 * 4096
    head = speculator("eagle3", n_drafts=5)
    assert head.own_weights == speculator("eagle3").own_weights
    assert head.kv_bytes_per_token == 4096


def test_a_cascade_drafts_for_its_drafter_and_is_cheaper_for_it() -> None:
    """Its inner lookup accepts (1 - 0.4^5) / 0.6 = 1.65 tokens a round: six drafts take 3.6 passes."""
    plain, cascade = speculator("draft-model", n_drafts=6), speculator("cascade", n_drafts=6)
    assert cascade.inner is not None
    assert cascade.inner.method == "ngram"
    plain_s, cascade_s = (StepCost(H200, LLAMA, speculator=one).draft_s(1, 100) for one in (plain, cascade))
    assert cascade_s / plain_s == pytest.approx(1 / 1.6496, rel=0.01)
    assert cascade.drafter.host_s_per_request == pytest.approx(6 / 1.6496 * 20e-6), "a lookup on the CPU for each of them"


@pytest.mark.parametrize("method", METHODS)
def test_sp3_drafts_that_are_never_accepted_make_a_step_slower_and_give_one_token(method: str) -> None:
    never = speculator(method, alpha=0.0)
    assert never.acceptance.expected(1000, never.n_drafts) == 1.0
    # 16 requests: the host is hidden, so that what counts is the GPU.
    with_drafts = StepCost(H200, LLAMA, speculator=never).bill(decoding(16, 8000, never))
    without = StepCost(H200, LLAMA).bill(decoding(16, 8000))
    assert with_drafts.seconds > without.seconds


def test_c16_a_window_spares_the_drafters_reads_and_not_its_acceptance() -> None:
    free, windowed = speculator("eagle3"), speculator("eagle3", draft_window=2048)
    costs = [StepCost(H200, LLAMA, speculator=one) for one in (free, windowed)]
    assert costs[0].draft_s(4, 4 * K128) - costs[1].draft_s(4, 4 * K128) == pytest.approx(
        3 * 4 * (K128 - 2048) * 4096 / (0.88 * 4.8e12), rel=1e-6
    )
    assert costs[0].draft_s(4, 4 * 1000) == costs[1].draft_s(4, 4 * 1000)
    assert free.acceptance.expected(K128, 3) == windowed.acceptance.expected(K128, 3)


def test_c22_the_cache_of_a_head_is_one_layers_and_that_of_a_draft_model_a_quarter() -> None:
    """4 KB of 131 KB (1/32) against 16 x 2 x 8 x 64 x 2 = 32,768 (1/4)."""
    target = LLAMA.kv_bytes_per_token()
    assert speculator("eagle3").kv_bytes_per_token / target == 1 / 32
    assert speculator("draft-model").kv_bytes_per_token / target == 0.25


def test_c21_verification_is_free_until_the_batch_meets_the_ridge() -> None:
    """One step of 4 x 4 tokens costs as one of 4; of 256 x 4 tokens it is well beyond 188 tokens."""
    cost = StepCost(H200, LLAMA)
    ratios = [cost.price(StepLoad((), n, 4 * n, n * 4000)) / cost.price(StepLoad((), n, n, n * 4000)) for n in (4, 256)]
    assert ratios[0] < 1.02
    assert ratios[1] > 1.15


def test_c18_the_gain_falls_with_the_batch() -> None:
    """AL about 2.7 at short context: most of it in a small batch, none of it at 1024, where verifying is no longer free."""
    eagle = speculator("eagle3")
    gains = []
    for n in (16, 64, 256, 1024):
        drafting = StepCost(H200, LLAMA, speculator=eagle).price(decoding(n, 1000, eagle))
        plain = StepCost(H200, LLAMA).price(decoding(n, 1000))
        gains.append(eagle.acceptance.expected(1000, 3) * plain / drafting)
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 2.0
    assert gains[-1] < 1.5


def test_an_acceptance_of_ones_own_takes_the_place_of_a_methods() -> None:
    mine = Chain(ContextRate(short=0.9))
    assert speculator("eagle2", acceptance=mine).acceptance is mine
    assert speculator("eagle3", alpha=0.4).acceptance.expected(K128, 1) == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("method", "wish", "words"),
    [
        pytest.param("egale3", Wish(), "Did you mean eagle3", id="a name that is none"),
        pytest.param("draft-model", Wish(), "needs a draft model", id="no draft model"),
        pytest.param("eagle3", Wish(draft_window=0), "draft window is 0", id="no window"),
        pytest.param("eagle3", Wish(alpha=1.5), "is a probability", id="no probability"),
        pytest.param("self", Wish(layer_share=1.0), "between 0 and 1", id="all layers"),
        pytest.param("self", Wish(layer_share=0.3), "by 0.3 of the layers hold is not known", id="a share nothing is known of"),
        pytest.param("eagle3", Wish(layer_share=0.3, alpha=0.6), "does not draft with the target's layers", id="a head"),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_is_refused(method: str, wish: Wish, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_speculator(method, LLAMA, wish)


@pytest.mark.parametrize("target", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_price_for_every_model(method: str, target: Model) -> None:
    one = find_speculator(method, target, Wish(draft_model=SMALL))
    assert 0 < StepCost(H200, target, speculator=one).price(decoding(4, 3000, one)) < 10


def drafting_flop(speculator: Speculator, *chunks: tuple[int, int]) -> float:
    bill = StepCost(H200, LLAMA, speculator=speculator).bill(StepLoad(chunks=tuple((n, start, False) for n, start in chunks)))
    return sum(part.flop for part in bill.parts if part.name == "drafting")


def test_a_draft_model_attends_to_the_prompt_in_all_its_layers() -> None:
    """Llama-3.2-1B: 16 layers x 4 x 2048 FLOP for each of 128K^2 / 2 pairs, 1.1e15: more than its weights' 3.2e14."""
    small = speculator("draft-model")
    flop = 2 * K128 * small.own_weights + 16 * 4 * 2048 * K128**2 / 2
    assert drafting_flop(small, (K128, 0)) == pytest.approx(flop)
    assert drafting_flop(small, (K128 // 2, 0), (K128 // 2, K128 // 2)) == pytest.approx(flop), "the same work in chunks"
    cost = StepCost(H200, LLAMA, speculator=small)
    assert cost.draft_prefill_s([(K128, 0)]) > flop / H200.bf16_flops
    one_token_more = cost.draft_prefill_s([(1, K128)]) - cost.draft_prefill_s([(1, 0)])
    assert one_token_more > K128 * 32_768 / H200.bandwidth, "the cache before a chunk is read"


def test_a_window_bounds_what_a_drafter_attends_to_in_a_prompt() -> None:
    pairs = 2048 * 2048 / 2 + (16384 - 2048) * 2048
    for windowed in (speculator("eagle3", draft_window=2048), speculator("mtp", draft_window=2048)):
        own = 2 * 16384 * windowed.own_weights
        assert drafting_flop(windowed, (16384, 0)) == pytest.approx(own + 4 * 4096 * pairs)
        assert drafting_flop(windowed, (1024, 0), (7168, 1024), (8192, 8192)) == pytest.approx(own + 4 * 4096 * pairs)
    assert drafting_flop(speculator("self"), (16384, 0)) == 0, "its layers are the target's, and so is its cache"
