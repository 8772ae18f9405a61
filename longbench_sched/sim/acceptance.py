"""How many drafted tokens a target model accepts.

`alpha` is the probability that a drafted token is accepted given that those before it were. A chain of k drafts then yields
E = (1 - alpha^(k+1)) / (1 - alpha) tokens a verification, the target's own bonus token included: this is the acceptance length
AL as engines report it (some papers report accepted drafts only, E - 1).

Where alpha comes from is one thing (`Rate`: a constant, a table of measured AL by context, a law by context), the shape of the
draft another (`Chain`, `Tree`). Samples take their randomness from the caller: the same seed gives the same tokens.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import Protocol

TRAINED_TOKENS = 2048  # training length of the public EAGLE-3 heads: acceptance falls beyond it, nothing is cut off


# -- closed forms


def expected_tokens(alpha: float, n_drafts: int) -> float:
    """Mean tokens a verification of a chain, the bonus token included: (1 - a^(k+1)) / (1 - a); k + 1 at a = 1.

    Leviathan et al. 2023, eq. 1.
    """
    if alpha >= 1.0:
        return n_drafts + 1.0
    return (1.0 - alpha ** (n_drafts + 1)) / (1.0 - alpha)


def alpha_for(acceptance_length: float, n_drafts: int) -> float:
    """The alpha that gives this AL (bonus included) with so many drafts; held within 0..1."""
    if acceptance_length <= 1.0:
        return 0.0
    if acceptance_length >= n_drafts + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, n_drafts) < acceptance_length else (low, middle)
    return (low + high) / 2


def speedup(tokens: float, n_drafts: int, draft_cost: float, verify_cost: float = 1.0) -> float:
    """Walltime factor E / (k c + v); c = t_draft_token / t_target_step, v = t_verify / t_target_step (1: verifying is free)."""
    return tokens / (n_drafts * draft_cost + verify_cost)


def break_even_draft_cost(tokens: float, n_drafts: int, verify_cost: float = 1.0) -> float:
    """The draft cost c above which speculation slows down: (E - v) / k."""
    return (tokens - verify_cost) / n_drafts


def distribution(alpha: float, n_drafts: int) -> list[float]:
    """P(exactly j tokens) for j = 1..k+1: a^(j-1) (1 - a), and a^k for all of them."""
    return [alpha**j * (1.0 - alpha) for j in range(n_drafts)] + [alpha**n_drafts]


# -- two token distributions


def acceptance_of(target: Sequence[float], draft: Sequence[float]) -> float:
    """Alpha of two token distributions under rejection sampling: sum of min(p, q). Leviathan et al. 2023, theorem 3.5."""
    return math.fsum(min(p, q) for p, q in zip(target, draft, strict=True))


def residual(target: Sequence[float], draft: Sequence[float]) -> list[float]:
    """What a rejected position is drawn from: max(0, p - q), normalised. The target itself where the two are equal."""
    left = [max(0.0, p - q) for p, q in zip(target, draft, strict=True)]
    total = math.fsum(left)
    return [value / total for value in left] if total > 0 else list(target)


def sample_speculatively(target: Sequence[float], draft: Sequence[float], rng: Random) -> tuple[int, bool]:
    """One position: draw from the draft, accept with min(1, p / q), else draw from the residual.

    Returns the token and whether the draft was accepted. The token is distributed as the target.
    """
    token = _draw(draft, rng)
    if rng.random() * draft[token] < target[token]:
        return token, True
    return _draw(residual(target, draft), rng), False


def _draw(weights: Sequence[float], rng: Random) -> int:
    return rng.choices(range(len(weights)), weights)[0]


# -- where alpha comes from


class Rate(Protocol):
    """Alpha by context."""

    def alpha(self, context_tokens: int, n_drafts: int) -> float:
        """Acceptance probability of a drafted token after so many tokens, in drafts of that length."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantRate:
    """The same alpha everywhere."""

    value: float

    def alpha(self, context_tokens: int, n_drafts: int) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class TableRate:
    """Measured acceptance lengths by context, interpolated over the logarithm of the context and held at both ends."""

    rows: tuple[tuple[int, float], ...]  # (context tokens, AL with the bonus token), contexts rising
    at_drafts: int  # drafts with which the table was measured

    def __post_init__(self) -> None:
        contexts = [context for context, _ in self.rows]
        assert contexts, "a table has rows"
        assert contexts == sorted(set(contexts)), "contexts rise"
        assert contexts[0] > 0, "a context has tokens"

    def acceptance_length(self, context_tokens: int) -> float:
        """AL at that context, with `at_drafts` drafts."""
        contexts = [context for context, _ in self.rows]
        i = bisect_left(contexts, context_tokens)
        if i == 0 or i == len(self.rows):
            return self.rows[min(i, len(self.rows) - 1)][1]
        (low, first), (high, last) = self.rows[i - 1], self.rows[i]
        share = math.log(context_tokens / low) / math.log(high / low)
        return first + share * (last - first)

    def alpha(self, context_tokens: int, n_drafts: int) -> float:
        """The alpha behind that AL."""
        return alpha_for(self.acceptance_length(context_tokens), self.at_drafts)


@dataclass(frozen=True, slots=True)
class ContextRate:
    """Alpha that falls beyond the trained length W: a_inf + (a0 - a_inf) min(1, W / ctx)^g.

    `recovery` multiplies AL - 1 beyond W, up to what a context within W gives: what EAGLE 3.1 claims at most (2).
    """

    short: float = 0.75  # a0
    long: float = 0.22  # a_inf: AL 1.28 with 3 drafts or more
    trained_tokens: int = TRAINED_TOKENS
    power: float = 1.0
    recovery: float = 1.0

    def alpha(self, context_tokens: int, n_drafts: int) -> float:
        """The law at that context."""
        reach = float(min(1.0, self.trained_tokens / max(1, context_tokens)) ** self.power)
        alpha = self.long + (self.short - self.long) * reach
        if self.recovery == 1.0 or context_tokens <= self.trained_tokens or n_drafts == 0:
            return alpha
        gained = 1.0 + (expected_tokens(alpha, n_drafts) - 1.0) * self.recovery
        return min(self.short, alpha_for(gained, n_drafts))


# -- the shape of the draft


class Acceptance(Protocol):
    """What becomes of a draft."""

    def accepted(self, context_tokens: int, n_drafts: int, rng: Random) -> int:
        """Drafts accepted, 0..n_drafts; one more token always comes. `n_drafts` is the depth of the draft."""
        ...

    def expected(self, context_tokens: int, n_drafts: int) -> float:
        """Mean tokens a verification, the bonus token included."""
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """One token after the other."""

    rate: Rate

    def accepted(self, context_tokens: int, n_drafts: int, rng: Random) -> int:
        """By inversion: P(at least j) = alpha^j, so one draw decides."""
        alpha = self.rate.alpha(context_tokens, n_drafts)
        if n_drafts <= 0 or alpha <= 0.0:
            return 0
        if alpha >= 1.0:
            return n_drafts
        return min(n_drafts, int(math.log(1.0 - rng.random()) / math.log(alpha)))

    def expected(self, context_tokens: int, n_drafts: int) -> float:
        """The closed form."""
        return expected_tokens(self.rate.alpha(context_tokens, n_drafts), n_drafts)


@dataclass(frozen=True, slots=True)
class Tree:
    """Several candidates a depth; the longest path that the target agrees with is accepted.

    The drafter's j-th choice is right with probability a (1 - a)^(j-1). Its confidence varies: alpha is `spread` above or below
    its mean, step by step and evenly. A static tree (EAGLE-1, Medusa) has the nodes that are best on average, a dynamic one
    (EAGLE-2) those that are best for the confidence of the step: the same number of nodes, a longer path.
    """

    rate: Rate
    n_nodes: int  # drafted tokens, the root not counted
    top_k: int = 8  # children considered a node
    spread: float = 0.15
    is_dynamic: bool = False

    def reach(self, context_tokens: int, n_drafts: int) -> list[tuple[float, ...]]:
        """P(accepted path has depth >= d) for d = 1..n_drafts, one tuple for each confidence."""
        alpha = round(self.rate.alpha(context_tokens, n_drafts), 3)
        spread = min(self.spread, alpha, 1.0 - alpha)
        states = (round(alpha - spread, 6), round(alpha + spread, 6))
        if self.is_dynamic:
            return [_reach((state,), state, self.n_nodes, self.top_k, n_drafts) for state in states]
        return [_reach(states, state, self.n_nodes, self.top_k, n_drafts) for state in states]

    def accepted(self, context_tokens: int, n_drafts: int, rng: Random) -> int:
        """Draw the confidence of the step, then the depth."""
        reach = self.reach(context_tokens, n_drafts)[rng.random() < 0.5]
        drawn = rng.random()
        return sum(drawn < probability for probability in reach)

    def expected(self, context_tokens: int, n_drafts: int) -> float:
        """E = 1 + sum over depths of P(reached)."""
        states = self.reach(context_tokens, n_drafts)
        return 1.0 + sum(map(sum, states)) / len(states)


@lru_cache(maxsize=4096)
def _reach(planned_for: tuple[float, ...], alpha: float, n_nodes: int, top_k: int, depth: int) -> tuple[float, ...]:
    """P(depth >= d) at `alpha` in the tree of the `n_nodes` likeliest nodes, likelihood being the mean over `planned_for`.

    A child is never likelier than its parent, so taking the likeliest node again and again gives the best tree.
    """
    reached = [0.0] * depth
    if depth == 0:
        return ()
    # (-likelihood, serial, ranks on the path, path likelihoods by state)
    heap: list[tuple[float, int, tuple[int, ...], tuple[float, ...]]] = []
    serial = 0

    def offer(ranks: tuple[int, ...], above: tuple[float, ...]) -> None:
        nonlocal serial
        paths = tuple(path * _right(state, ranks[-1]) for path, state in zip(above, planned_for, strict=True))
        serial += 1
        heappush(heap, (-sum(paths), serial, ranks, above))

    offer((1,), (1.0,) * len(planned_for))
    for _ in range(n_nodes):
        if not heap:
            break
        _, _, ranks, above = heappop(heap)
        reached[len(ranks) - 1] += math.prod(_right(alpha, rank) for rank in ranks)
        if ranks[-1] < top_k:
            offer((*ranks[:-1], ranks[-1] + 1), above)
        if len(ranks) < depth:
            offer((*ranks, 1), tuple(path * _right(state, ranks[-1]) for path, state in zip(above, planned_for, strict=True)))
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(reached)), "deeper is never likelier"
    return tuple(min(1.0, value) for value in reached)


def _right(alpha: float, rank: int) -> float:
    return float(alpha * (1.0 - alpha) ** (rank - 1))


@dataclass(frozen=True, slots=True)
class StatedDepths:
    """A table p_d: the probability that depth d is reached, as measured for some tree."""

    reached: tuple[float, ...] = field(default=())

    def accepted(self, context_tokens: int, n_drafts: int, rng: Random) -> int:
        """One draw decides."""
        drawn = rng.random()
        return sum(drawn < probability for probability in self.reached[:n_drafts])

    def expected(self, context_tokens: int, n_drafts: int) -> float:
        """E = 1 + sum of p_d."""
        return 1.0 + math.fsum(self.reached[:n_drafts])
