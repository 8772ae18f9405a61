"""Acceptance of drafts against closed forms, exact enumeration and fixed seeds."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.sim.acceptance import (
    Acceptance,
    Chain,
    ConstantRate,
    ContextRate,
    StatedDepths,
    TableRate,
    Tree,
    acceptance_of,
    alpha_for,
    break_even_draft_cost,
    distribution,
    expected_tokens,
    residual,
    sample_speculatively,
    speedup,
)

K128 = 131_072


@pytest.mark.parametrize(
    ("alpha", "k", "tokens"),
    [(0.0, 5, 1.0), (1.0, 5, 6.0), (0.5, 1, 1.5), (0.5, 3, 1.875), (0.8, 4, 3.3616), (0.22, 3, 1.279), (0.75, 0, 1.0)],
)
def test_the_mean_of_a_chain(alpha: float, k: int, tokens: float) -> None:
    """0.5 with 3 drafts: 1 + 1/2 + 1/4 + 1/8. C15: the bound is k + 1, not k."""
    assert expected_tokens(alpha, k) == pytest.approx(tokens, rel=1e-3)


@given(st.floats(0, 1), st.integers(0, 12))
def test_the_distribution_sums_to_one_and_has_that_mean(alpha: float, k: int) -> None:
    chances = distribution(alpha, k)
    assert math.fsum(chances) == pytest.approx(1)
    assert math.fsum((j + 1) * p for j, p in enumerate(chances)) == pytest.approx(expected_tokens(alpha, k))


@given(st.floats(0, 1), st.integers(1, 12))
def test_alpha_and_acceptance_length_go_back_and_forth(alpha: float, k: int) -> None:
    assert expected_tokens(alpha_for(expected_tokens(alpha, k), k), k) == pytest.approx(expected_tokens(alpha, k))


@pytest.mark.parametrize("k", [3, 4, 5, 7])
def test_an_acceptance_length_of_1_28_is_an_alpha_of_0_22(k: int) -> None:
    """C17: 22 % of first drafts pass; it is not that almost every draft is rejected."""
    assert alpha_for(1.28, k) == pytest.approx(0.22, abs=0.003)


def test_speed_up_and_break_even_by_hand() -> None:
    """AL 1.28, 3 drafts, verification free: worth it while a draft costs under 0.28 / 3 of a step."""
    assert break_even_draft_cost(1.28, 3) == pytest.approx(0.0933, rel=1e-3)
    assert speedup(1.28, 3, 0.0933) == pytest.approx(1.0, rel=1e-3)
    assert speedup(3.0, 4, 0.05, verify_cost=1.1) == pytest.approx(3 / 1.3)


@given(st.floats(1, 8), st.integers(1, 8), st.floats(0.001, 1), st.floats(1, 3))
def test_speculation_slows_down_exactly_beyond_break_even(tokens: float, k: int, cost: float, verify: float) -> None:
    if abs(break_even_draft_cost(tokens, k, verify) - cost) > 1e-9:
        assert (speedup(tokens, k, cost, verify) < 1) == (tokens < k * cost + verify)


# -- sampling

METHODS: dict[str, Acceptance] = {
    "chain": Chain(ConstantRate(0.7)),
    "law": Chain(ContextRate()),
    "static tree": Tree(ConstantRate(0.6), 25),
    "dynamic tree": Tree(ConstantRate(0.6), 25, is_dynamic=True),
    "stated depths": StatedDepths((0.8, 0.5, 0.2)),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("context", [100, 5000, K128])
def test_sp2_the_mean_of_samples_lies_within_3_sigma_of_the_closed_form(name: str, context: int) -> None:
    method, rng, k, n = METHODS[name], Random(1), 4, 20_000
    drawn = [1 + method.accepted(context, k, rng) for _ in range(n)]
    mean = sum(drawn) / n
    sigma = math.sqrt(sum((value - mean) ** 2 for value in drawn) / n / n)
    assert abs(mean - method.expected(context, k)) < 3 * sigma


@pytest.mark.parametrize("name", METHODS)
@given(context=st.integers(1, 200_000), k=st.integers(0, 9), seed=st.integers(0, 99))
def test_sp1_between_none_and_all_drafts_are_accepted_and_a_seed_decides(name: str, context: int, k: int, seed: int) -> None:
    method = METHODS[name]
    accepted = method.accepted(context, k, Random(seed))
    assert 0 <= accepted <= k
    assert accepted == method.accepted(context, k, Random(seed))


def test_a_chain_draws_each_length_as_often_as_it_should() -> None:
    rng, n = Random(2), 40_000
    counts = Counter(Chain(ConstantRate(0.6)).accepted(1, 3, rng) for _ in range(n))
    for j, chance in enumerate(distribution(0.6, 3)):
        assert abs(counts[j] - n * chance) < 4 * math.sqrt(n * chance * (1 - chance))


@pytest.mark.parametrize(("alpha", "accepted"), [(0.0, 0), (1.0, 5)])
def test_sp3_nothing_or_all_is_certain_at_the_ends(alpha: float, accepted: int) -> None:
    assert {Chain(ConstantRate(alpha)).accepted(9, 5, Random(seed)) for seed in range(50)} == {accepted}


# -- two distributions

weights = st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(any)


@given(st.tuples(weights, weights).filter(lambda pair: len(pair[0]) == len(pair[1])))
def test_rejection_sampling_keeps_the_targets_distribution_exactly(pair: tuple[list[int], list[int]]) -> None:
    """Enumerated in fractions: q min(1, p/q) + (1 - sum min(p, q)) x residual = p, token by token."""
    p, q = ([Fraction(value, sum(side)) for value in side] for side in pair)
    shared = [min(a, b) for a, b in zip(p, q, strict=True)]
    left = residual([float(a) for a in p], [float(b) for b in q])
    for token, target in enumerate(p):
        total = float(shared[token]) + float(1 - sum(shared)) * left[token]
        assert total == pytest.approx(float(target), abs=1e-12)
    assert acceptance_of([float(a) for a in p], [float(b) for b in q]) == pytest.approx(float(sum(shared)))


def test_drawn_tokens_are_distributed_as_the_target_and_accepted_as_alpha_says() -> None:
    p, q, n, rng = [0.5, 0.3, 0.15, 0.05, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2], 60_000, Random(3)
    drawn = [sample_speculatively(p, q, rng) for _ in range(n)]
    tokens = Counter(token for token, _ in drawn)
    chi_square = sum((tokens[i] - n * chance) ** 2 / (n * chance) for i, chance in enumerate(p) if chance)
    assert chi_square < 11.3, "1 % of a chi-square with 3 degrees of freedom"
    assert tokens[4] == 0, "what the target never says is never said"
    accepted = sum(was for _, was in drawn)
    alpha = acceptance_of(p, q)
    assert alpha == pytest.approx(0.6)
    assert abs(accepted - n * alpha) < 3 * math.sqrt(n * alpha * (1 - alpha))


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    p = [0.25, 0.5, 0.25]
    assert acceptance_of(p, p) == 1.0
    assert all(sample_speculatively(p, p, Random(seed))[1] for seed in range(200))


# -- alpha by context


def test_the_law_by_context() -> None:
    """0.75 up to 2048 tokens; at 4096 half of the way down, 0.22 + 0.53 / 2; at 128K 0.22 + 0.53 / 64."""
    law = ContextRate()
    assert [law.alpha(context, 3) for context in (1, 2048, 4096, K128)] == pytest.approx([0.75, 0.75, 0.485, 0.22828], rel=1e-4)


@given(st.integers(1, 300_000), st.integers(1, 7))
def test_a_claimed_recovery_is_never_better_than_a_short_context(context: int, k: int) -> None:
    plain, better = ContextRate(), ContextRate(recovery=2.0)
    assert plain.alpha(context, k) <= better.alpha(context, k) + 1e-12
    assert better.alpha(context, k) <= 0.75
    gain = (expected_tokens(better.alpha(context, k), k) - 1) / (expected_tokens(plain.alpha(context, k), k) - 1)
    assert gain <= 2 + 1e-6


def test_at_128k_the_claimed_recovery_doubles_what_is_gained() -> None:
    """C19: AL - 1 is 0.295 with 3 drafts at 128K, 0.589 as claimed."""
    plain, better = (Chain(ContextRate(recovery=by)).expected(K128, 3) - 1 for by in (1.0, 2.0))
    assert plain == pytest.approx(0.2923, rel=1e-3)
    assert better == pytest.approx(2 * plain)


def test_a_table_is_interpolated_over_the_logarithm_and_held_at_its_ends() -> None:
    table = TableRate(((2048, 3.0), (8192, 2.0), (K128, 1.28)), at_drafts=5)
    assert [table.acceptance_length(c) for c in (1, 2048, 4096, 8192, K128, 10**6)] == pytest.approx([3, 3, 2.5, 2, 1.28, 1.28])
    assert Chain(table).expected(K128, 5) == pytest.approx(1.28)
    assert Chain(table).expected(K128, 1) == pytest.approx(1.22, abs=0.005), "fewer drafts, fewer accepted"


# -- trees


def test_a_tree_that_is_a_chain_is_a_chain() -> None:
    tree = Tree(ConstantRate(0.6), n_nodes=4, top_k=1, spread=0.0)
    assert tree.expected(1, 4) == pytest.approx(expected_tokens(0.6, 4))


def test_a_small_tree_by_hand() -> None:
    """Alpha 0.6: first choice 0.6, second 0.24, then 0.36 below the first: three nodes are {1}, {1,1}, {2}."""
    tree = Tree(ConstantRate(0.6), n_nodes=3, spread=0.0)
    assert tree.reach(1, 5)[0] == pytest.approx((0.84, 0.36, 0, 0, 0))


@given(st.floats(0.05, 0.95), st.integers(1, 40), st.integers(1, 6))
def test_a_dynamic_tree_is_never_worse_than_a_static_one(alpha: float, nodes: int, depth: int) -> None:
    static, dynamic = (Tree(ConstantRate(alpha), nodes, is_dynamic=which) for which in (False, True))
    assert dynamic.expected(1, depth) >= static.expected(1, depth) - 1e-9


@given(st.floats(0.05, 0.95), st.integers(1, 40))
def test_more_nodes_never_accept_less(alpha: float, nodes: int) -> None:
    assert Tree(ConstantRate(alpha), nodes + 1).expected(1, 5) >= Tree(ConstantRate(alpha), nodes).expected(1, 5) - 1e-9
