"""Speculative decoding: methods as parameter sets.

A `Speculator` says how long a draft is, how many tokens the target verifies a request and step, what the drafter costs
(`Drafter`) and how many drafts are accepted (`acceptance.py`). Methods differ in nothing else.

EAGLE is *not* made of the target's own low layers: it is a separate one-layer head on the target's hidden states, with weights
and KV cache of its own. Working with a subset of the target's layers is self-speculation, which has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from longbench_sched.errors import UsageError
from longbench_sched.sim.acceptance import Acceptance, Chain, ConstantRate, ContextRate, Rate, TableRate, Tree
from longbench_sched.sim.hardware import lookup
from longbench_sched.sim.models import Model

SELF_ALPHA = 0.8  # of drafts by half of the layers


@dataclass(frozen=True, slots=True)
class Drafter:
    """What it costs to draft: `passes` forward passes after one another, each over `width` tokens a request."""

    passes: int
    width: int = 1
    own_weights: int = 0  # parameters it adds to memory
    read_weights: int = 0  # parameters a pass reads: its own and those it borrows (the target's head, some of its layers)
    layers: float = 0.0  # attention layers in a pass
    flop_per_pair: float = 0.0  # of its own layers, for a query and a key of a prompt; 0: it reads no prompt
    kv_bytes_per_token: float = 0.0  # what it adds to the cache
    read_kv_bytes_per_token: float = 0.0  # what a pass reads for a token of context
    window: int | None = None  # tokens of history it attends to; None: all
    host_s_per_request: float = 0.0  # drafting on the CPU


@dataclass(frozen=True, slots=True)
class Speculator:
    """A method with its parameters."""

    method: str
    n_drafts: int  # k: depth of a draft
    verify_tokens: int  # tokens a request brings into a verification: k + 1, or the nodes of a tree with its root
    drafter: Drafter
    acceptance: Acceptance
    source: str
    inner: Speculator | None = None  # drafts for the drafter (cascade)
    is_claimed_maximum: bool = False  # rests on a claim of "up to", not on a measurement
    given: tuple[str, ...] = ()  # what the user said of it, in words

    @property
    def label(self) -> str:
        """The method, whether it is a claimed maximum, and what was asked of it: `eagle3.1, claimed maximum`."""
        return ", ".join([self.method, *(["claimed maximum"] if self.is_claimed_maximum else []), *self.given])

    @property
    def own_weights(self) -> int:
        """Parameters added to memory, all levels."""
        return self.drafter.own_weights + (self.inner.own_weights if self.inner else 0)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes added to the KV cache for a token, all levels."""
        return self.drafter.kv_bytes_per_token + (self.inner.kv_bytes_per_token if self.inner else 0.0)

    @property
    def lookahead_tokens(self) -> int:
        """Slots past the known tokens that a verification writes to."""
        return self.verify_tokens - 1


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asks of a method; None and 0 leave its own default."""

    n_drafts: int = 0
    method: str = ""  # a set that no engine's flag names, played by the one that is turned on (`drafting.py`)
    draft_model: Model | None = None
    draft_window: int | None = None
    alpha: float | None = None  # a constant acceptance probability
    lengths: tuple[tuple[int, float], ...] = ()  # or measured: (context, tokens a step with `n_drafts` drafts), contexts rising
    acceptance: Acceptance | None = None  # anything else
    layer_share: float | None = None  # of the target's layers, in self-speculation


def _draft_model(target: Model, wish: Wish) -> Speculator:
    """A small model of the same family (Leviathan et al. 2023, Chen et al. 2023: K = 4)."""
    k = wish.n_drafts or 4
    drafter = _model_drafter(_needed(wish, wish.method or "draft-model"), k, wish.draft_window)
    return _chain("draft-model", k, drafter, wish, 0.7, "Leviathan 2023, Chen 2023 (K = 4); alpha assumed")


def _ngram(target: Model, wish: Wish) -> Speculator:
    """Look the last few tokens up in the prompt."""
    k = wish.n_drafts or 5
    drafter = Drafter(passes=0, host_s_per_request=20e-6)
    return _chain("ngram", k, drafter, wish, 0.4, "prompt lookup; alpha and 20 us of CPU a request assumed")


def _medusa(target: Model, wish: Wish) -> Speculator:
    """Heads on the last hidden state, each for one position ahead: one pass, a fixed tree (Medusa 2024: 5 heads, 64 nodes)."""
    k = wish.n_drafts or 5
    weights = k * (target.hidden**2 + target.hidden * target.vocab)
    drafter = Drafter(passes=1, own_weights=weights, read_weights=weights)
    # Its heads do not see each other's tokens: less often right than a head that does.
    return _tree("medusa", k, 64, drafter, wish, ConstantRate(0.55), "Medusa 2024: 5 heads, 64 nodes; alpha assumed")


def _eagle1(target: Model, wish: Wish) -> Speculator:
    """One layer on the target's top features, a fixed tree."""
    k = wish.n_drafts or 5
    drafter = _layer_drafter(target, k, width=5, fused=2, window=wish.draft_window)
    return _tree(
        "eagle", k, 26, drafter, wish, ContextRate(0.68), "EAGLE 2024: 5 passes, fixed tree of 26 [recall]; law assumed"
    )


def _eagle2(target: Model, wish: Wish) -> Speculator:
    """The same head; the tree is chosen by its confidence (SGLang 0.4.2: 5 steps, top 8, 64 tokens)."""
    k = wish.n_drafts or 5
    drafter = _layer_drafter(target, k, width=8, fused=2, window=wish.draft_window)
    source = "EAGLE-2 2024 as SGLang 0.4.2 runs it: 5 steps, top 8, 64 tokens; law assumed"
    return _tree("eagle2", k, 64, drafter, wish, ContextRate(0.68), source, is_dynamic=True)


def _eagle3(target: Model, wish: Wish) -> Speculator:
    """One layer on fused low, middle and high features, trained on its own outputs; a chain."""
    k = wish.n_drafts or 3
    drafter = _layer_drafter(target, k, width=1, fused=3, window=wish.draft_window)
    source = "EAGLE-3 2025, chain of 3; alpha by context: 0.75 within 2048 tokens, towards 0.22 (AL 1.28) far beyond"
    return _chain("eagle3", k, drafter, wish, ContextRate(), source)


def _eagle31(target: Model, wish: Wish) -> Speculator:
    """EAGLE-3 with normalised fused states: the same cost, up to twice the acceptance length beyond the trained context."""
    source = "EAGLE 3.1 2026-05: AL - 1 up to twice on long contexts. A claimed maximum, no table by length is published"
    plain = _eagle3(target, wish)
    own = _acceptance(wish, plain.n_drafts)
    acceptance = own or Chain(ContextRate(recovery=2.0))
    return replace(plain, method="eagle3.1", acceptance=acceptance, source=source, is_claimed_maximum=own is None)


def _mtp(target: Model, wish: Wish) -> Speculator:
    """A module for each depth, trained with the model (DeepSeek-V3: one, its token accepted 85-90 % of the time)."""
    k = wish.n_drafts or 1
    layer = _layer_weights(target) + 2 * target.hidden**2  # joins hidden state and embedding
    per_layer = target.attention.kv_elements() * target.kv_bytes
    drafter = Drafter(
        passes=k,
        own_weights=k * layer,  # one module a depth
        read_weights=layer + target.hidden * target.vocab,
        layers=1,
        flop_per_pair=k * target.attention.flop_per_pair(),
        kv_bytes_per_token=k * per_layer,
        read_kv_bytes_per_token=per_layer,
        window=wish.draft_window,
    )
    return _chain("mtp", k, drafter, wish, 0.85, "DeepSeek-V3 report: one module, second token accepted 85-90 %")


def _self(target: Model, wish: Wish) -> Speculator:
    """A subset of the target's own layers drafts: no weights and no cache of its own."""
    k = wish.n_drafts or 4
    share = 0.5 if wish.layer_share is None else wish.layer_share
    if not 0 < share < 1:
        raise UsageError(f"the share of layers that draft is {share:g}; it lies between 0 and 1.")
    if wish.layer_share is not None and _acceptance(wish, k) is None:
        raise UsageError(
            f"how often drafts by {share:g} of the layers hold is not known: the {SELF_ALPHA:g} that is assumed is for half of "
            "them.\n  Give --acceptance-rate or --acceptance-length beside --draft-layer-share."
        )
    drafter = Drafter(
        passes=k,
        read_weights=int(share * target.linear_weights()) + target.hidden * target.vocab,
        layers=share * target.layers,
        read_kv_bytes_per_token=share * target.kv_bytes_per_token(),
        window=wish.draft_window,
    )
    return _chain(
        "self", k, drafter, wish, SELF_ALPHA, "Draft & Verify 2023, LayerSkip 2024: about half the layers; alpha assumed"
    )


def _cascade(target: Model, wish: Wish) -> Speculator:
    """A draft model for which prompt lookup drafts in turn: a draft costs what an accepted token of the inner level costs."""
    outer = _draft_model(target, replace(wish, n_drafts=wish.n_drafts or 6))
    inner = _ngram(target, Wish(n_drafts=4))
    rounds = outer.drafter.passes / inner.acceptance.expected(1, inner.n_drafts)
    drafter = replace(outer.drafter, host_s_per_request=rounds * inner.drafter.host_s_per_request)
    source = "recursive drafting (Chen et al. 2023b); alphas assumed"
    return replace(outer, method="cascade", drafter=drafter, inner=inner, source=source)


METHODS: Mapping[str, Callable[[Model, Wish], Speculator]] = {
    "draft-model": _draft_model,
    "ngram": _ngram,
    "medusa": _medusa,
    "eagle": _eagle1,
    "eagle2": _eagle2,
    "eagle3": _eagle3,
    "eagle3.1": _eagle31,
    "mtp": _mtp,
    "self": _self,
    "cascade": _cascade,
}


def find_speculator(method: str, target: Model, wish: Wish | None = None) -> Speculator:
    """That method for this target. Raises UsageError for an unknown method or a wish that it cannot fulfil."""
    make = lookup(METHODS, method, "speculative method")
    wish = wish or Wish()
    if wish.draft_window is not None and wish.draft_window < 1:
        raise UsageError(f"the draft window is {wish.draft_window}; it is a number of tokens from 1, or none.")
    if wish.alpha is not None and not 0 <= wish.alpha <= 1:
        raise UsageError(f"alpha is {wish.alpha}; it is a probability.")
    if wish.lengths:
        _check_lengths(wish)
    found = make(target, wish)
    if wish.draft_window is not None and not found.drafter.layers:
        raise UsageError(f"{method} drafts without attention: it has no window.\n  Leave --draft-window out.")
    if wish.layer_share is not None and method != "self":
        raise UsageError(f"{method} does not draft with the target's layers.\n  Leave --draft-layer-share out, or choose self.")
    return replace(found, given=_given(wish))


def _given(wish: Wish) -> tuple[str, ...]:
    lengths = " ".join(f"{tokens:g}@{context}" for context, tokens in wish.lengths)
    named = (
        ("draft model", wish.draft_model and wish.draft_model.name),
        ("window", wish.draft_window),
        ("layer share", None if wish.layer_share is None else f"{wish.layer_share:g}"),
        ("acceptance", None if wish.alpha is None else f"{wish.alpha:g}"),
        ("acceptance length", lengths),
    )
    return tuple(f"{what} {value}" for what, value in named if value)


def _needed(wish: Wish, method: str) -> Model:
    if wish.draft_model is None:
        raise UsageError(f"{method} needs a draft model. Name a small one of the target's family: --draft-model NAME.")
    return wish.draft_model


def _check_lengths(wish: Wish) -> None:
    contexts = [context for context, _ in wish.lengths]
    if contexts != sorted(set(contexts)) or contexts[0] < 1:
        raise UsageError(f"acceptance lengths are for the contexts {contexts}; they rise from 1.")
    for context, tokens in wish.lengths:
        if not 1 <= tokens <= wish.n_drafts + 1:
            raise UsageError(
                f"an acceptance length of {tokens} at {context} tokens: with {wish.n_drafts} drafts a step gives 1 to "
                f"{wish.n_drafts + 1} tokens."
            )
    if wish.alpha is not None:
        raise UsageError("acceptance is given as a rate and as lengths. Leave one of the two out.")


def _acceptance(wish: Wish, k: int) -> Acceptance | None:
    if wish.acceptance is not None:
        return wish.acceptance
    if wish.lengths:
        return Chain(TableRate(wish.lengths, k))
    return Chain(ConstantRate(wish.alpha)) if wish.alpha is not None else None


def _chain(method: str, k: int, drafter: Drafter, wish: Wish, rate: float | ContextRate, source: str) -> Speculator:
    own = Chain(ConstantRate(rate) if isinstance(rate, float) else rate)
    return Speculator(method, k, k + 1, drafter, _acceptance(wish, k) or own, source)


def _tree(
    method: str, k: int, nodes: int, drafter: Drafter, wish: Wish, rate: Rate, source: str,
    *, is_dynamic: bool = False,
) -> Speculator:  # fmt: skip
    """`nodes` counts the root, which the target's last token is."""
    if wish.alpha is not None:
        rate = ConstantRate(wish.alpha)
    if wish.lengths:
        rate = TableRate(wish.lengths, k)
    shape = Tree(rate, nodes - 1, top_k=max(drafter.width, 4), is_dynamic=is_dynamic)
    return Speculator(method, k, nodes, drafter, wish.acceptance or shape, source)


def _model_drafter(model: Model, k: int, window: int | None) -> Drafter:
    return Drafter(
        passes=k,
        own_weights=model.total_weights(),
        read_weights=model.linear_weights() + model.hidden * model.vocab,
        layers=model.layers,
        flop_per_pair=model.layers * model.attention.flop_per_pair(),
        kv_bytes_per_token=model.kv_bytes_per_token(),
        read_kv_bytes_per_token=model.kv_bytes_per_token(),
        window=window,
    )


def _layer_drafter(target: Model, k: int, *, width: int, fused: int, window: int | None) -> Drafter:
    """One layer; `fused` states of the target's width are projected to its input; the target's head is borrowed."""
    own = _layer_weights(target) + fused * target.hidden**2
    kv = target.attention.kv_elements() * target.kv_bytes
    return Drafter(
        passes=k,
        width=width,
        own_weights=own,
        read_weights=own + target.hidden * target.vocab,
        layers=1,
        flop_per_pair=target.attention.flop_per_pair(),
        kv_bytes_per_token=kv,
        read_kv_bytes_per_token=kv,
        window=window,
    )


def _layer_weights(target: Model) -> int:
    """A dense layer of the target's shape; of a mixture of experts, one as wide as its active experts."""
    ffn = target.ffn
    if target.experts is not None and not ffn:
        ffn = target.experts.ffn * (target.experts.top_k + target.experts.n_shared)
    return target.attention.weights(target.hidden) + 3 * target.hidden * ffn
