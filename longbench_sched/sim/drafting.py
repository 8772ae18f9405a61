"""Speculation in an engine: the method that its flags ask for, joined to the scheduler, the price and the memory.

The scheduler decides how many drafts are verified, the method (`speculation.py`) what they cost and how many hold. A drafter
takes memory of its own: its weights and its cache leave less for the target's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from longbench_sched.errors import UsageError
from longbench_sched.sim.acceptance import Chain, Tree
from longbench_sched.sim.calibration import Calibration
from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.engine import Engine, EngineOptions, build_engine
from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.models import Model
from longbench_sched.sim.policy.sglang import SglangOptions
from longbench_sched.sim.policy.trtllm import TrtllmOptions
from longbench_sched.sim.policy.vllm_v0 import VllmV0Options
from longbench_sched.sim.policy.vllm_v1 import VllmV1Options
from longbench_sched.sim.speculation import Speculator, Wish, find_speculator
from longbench_sched.sim.step import Sequence

_VLLM = {"draft_model": "draft-model"}
_SGLANG = {"EAGLE": "eagle2", "EAGLE3": "eagle3", "NEXTN": "mtp", "NGRAM": "ngram"}


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

    `wish` holds what no flag of an engine says: the draft model, its window, how often a draft is right.
    """
    wish = wish or Wish()
    match options:
        case VllmV1Options(num_speculative_tokens=k, speculative_method=method) if k:
            return _chain(_VLLM.get(method, method), k, target, wish)
        case VllmV0Options(num_speculative_tokens=k) | TrtllmOptions(num_speculative_tokens=k) if k:
            return _chain("draft-model" if wish.draft_model is not None else "ngram", k, target, wish)
        case SglangOptions(speculative_algorithm=algorithm) if algorithm:
            method, steps = _SGLANG[algorithm], options.speculative_num_steps
            if options.speculative_eagle_topk <= 1:
                return _chain(method, steps, target, wish)
            if wish.lengths:
                raise UsageError(
                    "acceptance lengths tell how often a draft of a chain is right, and this is a tree.\n  Give an acceptance "
                    "rate instead, or a chain (--speculative-eagle-topk 1)."
                )
            _check_model(method, wish)
            tree = find_speculator(method, target, replace(wish, n_drafts=steps))
            return replace(tree, verify_tokens=options.speculative_num_draft_tokens)
    return None


def _check_model(method: str, wish: Wish) -> None:
    """Raises UsageError for a draft model that would not be asked."""
    if wish.draft_model is not None and method != "draft-model":
        raise UsageError(
            f"{method} drafts without a model of its own.\n  Leave --draft-model out, or choose a method that has one "
            '(vLLM: --speculative-config \'{"method": "draft_model", ...}\').'
        )


def _chain(method: str, k: int, target: Model, wish: Wish) -> Speculator:
    """A method verified as a chain of k, also where its paper draws a tree: so these engines run it."""
    _check_model(method, wish)
    found = find_speculator(method, target, replace(wish, n_drafts=k))
    acceptance = found.acceptance
    if isinstance(acceptance, Tree):
        acceptance = Chain(acceptance.rate)
    return replace(found, verify_tokens=k + 1, acceptance=acceptance, drafter=replace(found.drafter, width=1))


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
