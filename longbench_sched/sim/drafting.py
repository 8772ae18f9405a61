"""Speculation in an engine: the method that its flags ask for, joined to the scheduler, the price and the memory.

The scheduler decides how many drafts are verified, the method (`speculation.py`) what they cost and how many hold. A drafter
takes memory of its own: its weights and its cache leave less for the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from longbench_sched.errors import UsageError
from longbench_sched.sim.acceptance import Chain, Tree
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.engine import Engine, EngineOptions, build_engine
from longbench_sched.sim.hardware import Gpu, lookup
from longbench_sched.sim.models import Model
from longbench_sched.sim.policy.sglang import SglangOptions
from longbench_sched.sim.policy.trtllm import TrtllmOptions
from longbench_sched.sim.policy.vllm_v0 import VllmV0Options
from longbench_sched.sim.policy.vllm_v1 import VllmV1Options
from longbench_sched.sim.speculation import METHODS, Speculator, Wish, find_speculator
from longbench_sched.sim.step import Sequence

# What the drafter that an engine's flag turns on may be played as: its own set of parameters, then those that no flag names
# and for which the scheduler keeps the same books (slots ahead, places in the budget, hidden states). Engines load an EAGLE-3.1
# head as one of EAGLE-3, and have neither self-speculation nor cascades: these would take the place of a draft model.
_VLLM = {
    "ngram": ("ngram",),
    "medusa": ("medusa",),
    "eagle": ("eagle", "eagle2"),
    "eagle3": ("eagle3", "eagle3.1"),
    "mtp": ("mtp",),
    "draft_model": ("draft-model", "self", "cascade"),
}
_SGLANG = {
    "EAGLE": ("eagle2", "eagle", "medusa"),
    "EAGLE3": ("eagle3", "eagle3.1"),
    "NEXTN": ("mtp",),
    "STANDALONE": ("draft-model", "self", "cascade"),
    "NGRAM": ("ngram",),
}
_WITH_MODEL = ("draft-model", "cascade")


@dataclass(slots=True)
class Luck:
    """Which drafts hold: drawn in the order of verification, so that a run can be repeated."""

    speculator: Speculator
    rng: Random

    def __call__(self, sequence: Sequence, n_drafts: int) -> int:
        """How many of so many drafts are accepted."""
        return self.speculator.acceptance.accepted(sequence.length, n_drafts, self.rng)


def speculator_of(options: EngineOptions, target: Model, wish: Wish | None = None) -> Speculator | None:
    """The method that resolved flags ask for; None without speculation. Raises UsageError.

    `wish` holds what no flag of an engine says: a set of parameters that none names, the draft model, its window, how often a
    draft is right.
    """
    wish = wish or Wish()
    match options:
        case VllmV1Options(num_speculative_tokens=k, speculative_method=named) if k:
            return _chain(_played(named, _VLLM, wish), k, target, wish)
        case VllmV0Options(num_speculative_tokens=k) | TrtllmOptions(num_speculative_tokens=k) if k:
            # These flags name no method, and their schedulers ask for none.
            return _chain(wish.method or ("draft-model" if wish.draft_model is not None else "ngram"), k, target, wish)
        case SglangOptions(speculative_algorithm=named, profile=profile) if named:
            drafters = {name: methods for name, methods in _SGLANG.items() if name in profile.drafters}
            method = _played(named, drafters, wish)
            if options.speculative_eagle_topk <= 1:
                return _chain(method, options.speculative_num_steps, target, wish)
            return _tree(method, options, target, wish)
    return None


def draft_facts(speculator: Speculator) -> dict[str, object]:
    """What a run says of its drafts: a line, and what it is made of."""
    return {
        "drafter": speculator.label,
        "speculator": {
            "method": speculator.method,
            "n_drafts": speculator.n_drafts,
            "verify_tokens": speculator.verify_tokens,
            "source": speculator.source,
            "is_claimed_maximum": speculator.is_claimed_maximum,
            "given": list(speculator.given),
        },
    }


def _played(named: str, drafters: Mapping[str, tuple[str, ...]], wish: Wish) -> str:
    """The set of parameters for the drafter that a flag names; `drafters` are those of the engine. Raises UsageError."""
    known = drafters[named]
    if not wish.method or wish.method in known:
        return wish.method or known[0]
    lookup(METHODS, wish.method, "speculative method")
    others = [name for name, methods in drafters.items() if wish.method in methods]
    remedy = f"Give {others[0]} there" if others else "No flag of this engine turns on what could be: give another --engine"
    raise UsageError(
        f"--draft-method {wish.method} is not what the engine's own flag, {named}, can be played as: {', '.join(known)}.\n"
        f"  {remedy}, or leave --draft-method out."
    )


def _check_model(method: str, wish: Wish) -> None:
    """Raises UsageError for a draft model that would not be asked."""
    if wish.draft_model is not None and method not in _WITH_MODEL:
        raise UsageError(
            f"{method} drafts without a model of its own.\n  Leave --draft-model out, or choose a method that has one "
            '(vLLM: --speculative-config \'{"method": "draft_model", ...}\', SGLang: --speculative-algorithm STANDALONE).'
        )


def _chain(method: str, k: int, target: Model, wish: Wish) -> Speculator:
    """A method verified as a chain of k, also where its paper draws a tree: so these engines run it."""
    _check_model(method, wish)
    found = find_speculator(method, target, replace(wish, n_drafts=k))
    acceptance = found.acceptance
    if isinstance(acceptance, Tree):
        acceptance = Chain(acceptance.rate)
    return replace(found, verify_tokens=k + 1, acceptance=acceptance, drafter=replace(found.drafter, width=1))


def _tree(method: str, options: SglangOptions, target: Model, wish: Wish) -> Speculator:
    """A method verified as the tree that SGLang's flags describe, also where its paper draws a chain."""
    if wish.lengths:
        raise UsageError(
            "acceptance lengths tell how often a draft of a chain is right, and this is a tree.\n  Give an acceptance "
            "rate instead, or a chain (--speculative-eagle-topk 1)."
        )
    _check_model(method, wish)
    found = find_speculator(method, target, replace(wish, n_drafts=options.speculative_num_steps))
    topk, tokens = options.speculative_eagle_topk, options.speculative_num_draft_tokens
    acceptance, drafter = found.acceptance, found.drafter
    if isinstance(acceptance, Chain):
        acceptance = Tree(acceptance.rate, tokens - 1, top_k=topk, is_dynamic=True)
    elif isinstance(acceptance, Tree):
        acceptance = replace(acceptance, n_nodes=tokens - 1, top_k=topk)
    if drafter.layers:  # passes over the candidates of the one before
        drafter = replace(drafter, width=topk)
    return replace(found, verify_tokens=tokens, acceptance=acceptance, drafter=drafter)


def build_speculating(
    name: str,
    gpu: Gpu,
    model: Model,
    options: EngineOptions,
    calibration: Calibration | None = None,
    *,
    wish: Wish | None = None,
    seed: int = 0,
) -> Engine:
    """`engine.build_engine`, with the drafter of its flags if they ask for one. Raises UsageError."""
    engine = build_engine(name, gpu, model, options, calibration)
    model = engine.model  # as it is served
    speculator = speculator_of(engine.options, model, wish)
    if speculator is None:
        return engine
    smaller = replace(gpu, memory_bytes=gpu.memory_bytes - _drafter_bytes(engine, speculator))
    engine = build_engine(name, smaller, model, engine.options, calibration)
    engine.gpu = gpu
    engine.cost = StepCost(gpu, model, engine.cost.calibration, engine.cost.parallel, speculator)
    engine.accepted = Luck(speculator, Random(seed))
    return engine


def _drafter_bytes(engine: Engine, speculator: Speculator) -> int:
    """Memory of each GPU that the drafter takes: M_kv - (M_kv - W) t / (t + d), over the share of it that the engine uses.

    W: the drafter's weights on a GPU; t, d: KV bytes a token of target and drafter there; M_kv: what is left for KV without it.
    """
    model, options, kv = engine.model, engine.options, engine.state.kv
    tp = engine.cost.parallel.tp
    target = float(model.kv_bytes_per_token(tp))
    memory = kv.total * kv.block_tokens * target
    weights = speculator.own_weights * model.weight_bytes / tp
    left = (memory - weights) * target / (target + speculator.kv_bytes_per_token / tp)
    shares = ("gpu_memory_utilization", "mem_fraction_static", "kv_cache_free_gpu_memory_fraction")
    share = next(float(value) for field in shares if (value := getattr(options, field, None)))
    return round((memory - left) / share)
