"""Flags of SGLang (0.5.23, and 0.4.2.post4 as a profile): their defaults, and what cannot be had together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from longbench_sched.errors import UsageError
from longbench_sched.sim.hardware import Gpu
from longbench_sched.sim.models import KvCacheDtype, Quantization

PLACES_WHEN_SPECULATING = 48  # unless `--max-running-requests` is given (0.5.23)
_MEMORY_0_4_2 = {1: 0.88, 2: 0.87, 4: 0.85}  # share by tensor-parallel size; 0.81 from 8 on


@dataclass(frozen=True, slots=True)
class SglangProfile:
    """What differs between releases."""

    release: str
    orders: tuple[str, ...]  # that `--schedule-policy` knows
    drafters: tuple[str, ...]  # that `--speculative-algorithm` knows
    reserves_ignore_eos_in_full: bool  # what a sequence that ignores EOS may still generate is reserved, not a part of it
    looks_to_next_end: bool  # without a cache, room for one that ignores EOS is looked for at the end after each; else at each
    admits_by_page: bool  # a prompt must leave a page unused, and what it has generated before is not asked for again
    holds_chunk_to_reserve: bool  # the prompt in progress leaves what is reserved for those that run, as long as it gets on
    caps_input_with_chunks: bool  # `max_prefill_tokens` ends a batch of several prompts even if they are chunked
    retracts_ahead: bool  # until there is room for 20 decode steps; else until the next one fits
    splits_prompt: bool
    ratio_bias: int  # in the denominator of the ratio after a retraction
    has_priorities: bool
    has_stages: bool


SGLANG_0_5_23 = SglangProfile(
    release="0.5.23",
    orders=("fcfs", "lpm", "dfs-weight", "lof", "random", "hrrn", "shortest-prefill-first", "routing-key"),
    drafters=("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"),
    reserves_ignore_eos_in_full=True,
    looks_to_next_end=False,
    admits_by_page=True,
    holds_chunk_to_reserve=True,
    caps_input_with_chunks=False,
    retracts_ahead=False,
    splits_prompt=True,
    ratio_bias=1,
    has_priorities=True,
    has_stages=True,
)
SGLANG_0_4_2 = SglangProfile(
    release="0.4.2",
    orders=("lpm", "random", "fcfs", "dfs-weight"),
    drafters=("EAGLE",),  # the others came later in 2025
    reserves_ignore_eos_in_full=False,
    looks_to_next_end=True,
    admits_by_page=False,
    holds_chunk_to_reserve=False,
    caps_input_with_chunks=True,
    retracts_ahead=True,
    splits_prompt=False,
    ratio_bias=0,
    has_priorities=False,
    has_stages=False,
)


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """Flags of `sglang.launch_server` 0.5.23, by their own names; None is resolved by GPU memory."""

    chunked_prefill_size: int | None = None  # -1: no chunking
    max_prefill_tokens: int = 16384
    max_running_requests: int | None = None
    context_length: int | None = None
    enable_mixed_chunk: bool = False
    schedule_conservativeness: float = 1.0
    mem_fraction_static: float | None = None
    page_size: int = 1
    enable_metrics: bool = False
    enable_cache_report: bool = False  # answers say how much of a prompt was cached
    schedule_policy: str = "fcfs"
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    num_continuous_decode_steps: int = 1
    prefill_decode_interval: int = 0  # decode steps after each prefill batch
    max_total_tokens: int | None = None  # the KV pool, instead of what memory holds
    max_queued_requests: int | None = None
    speculative_algorithm: Literal["", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"] = ""
    speculative_num_steps: int = 0
    speculative_eagle_topk: int = 0
    speculative_num_draft_tokens: int = 0
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10  # who is more urgent by more than this may take the place of another
    disable_priority_preemption: bool = False
    random_seed: int = 0  # of the order `random`
    quantization: Quantization = ""  # of weights that are bf16
    kv_cache_dtype: KvCacheDtype = "auto"
    tp_size: int = 1
    pp_size: int = 1
    pp_max_micro_batch_size: int | None = None  # requests that run in one micro-batch; None: the places over the stages
    pp_async_batch_depth: int = 0  # micro-batches more than stages
    enable_dynamic_chunking: bool = False  # of pipeline stages: later chunks of a prompt are shorter
    dynamic_chunking_smooth_factor: float = 0.75  # an environment variable of the engine: 0 fixed, 1 strictly equal times

    @property
    def profile(self) -> SglangProfile:
        """The release."""
        return SGLANG_0_5_23

    @property
    def is_overlapped(self) -> bool:
        """Whether a batch is launched before the result of the one before it is read."""
        return not self.disable_overlap_schedule and self.pp_size == 1

    @property
    def has_priority_preemption(self) -> bool:
        """Whether a request may take the place of one that is less urgent."""
        return self.enable_priority_scheduling and not self.disable_priority_preemption

    def resolved(self, gpu: Gpu, model_context: int) -> SglangOptions:
        """The same with every default decided; `max_running_requests` when the KV capacity is known, by `max_running`.

        Chunks of 2048 tokens below 20 GiB, 4096 below 60, 8192 below 160, else 16384. Raises UsageError.
        """
        gib = gpu.memory_gib
        chunk = self.chunked_prefill_size or (2048 if gib < 20 else 4096 if gib < 60 else 8192 if gib < 160 else 16384)
        n_gpus = self.tp_size * self.pp_size
        parallel_gib = n_gpus / 8 if n_gpus > 1 else 0.0
        reserved_gib = max(0.5 + 1.5 * max(chunk, 2048) / 1024 + parallel_gib, 10.0 if gib >= 60 else 0.0)
        fraction = self.mem_fraction_static or round((gib - reserved_gib) / gib, 3)
        options = _speculating(_checked(self), 3, 1, 4)
        if options.speculative_algorithm:
            if options.enable_mixed_chunk:
                raise UsageError(
                    f"--enable-mixed-chunk cannot be had with {options.speculative_algorithm} in SGLang 0.5.23: speculation "
                    "turns it off.\n  Leave one of the two out."
                )
            options = replace(options, max_running_requests=options.max_running_requests or PLACES_WHEN_SPECULATING)
        return options._with(chunk, fraction, model_context)

    def _with(self, chunk: int, fraction: float, model_context: int) -> SglangOptions:
        return replace(
            self,
            chunked_prefill_size=chunk,
            context_length=self.context_length or model_context,
            mem_fraction_static=fraction,
        )

    def max_running(self, kv_tokens: int) -> int:
        """Places: min(tokens / 2, tokens / context x 512 within 2048..4096) unless set."""
        per_context = kv_tokens / (self.context_length or 1) * 512
        return self.max_running_requests or max(1, int(min(kv_tokens / 2, max(2048.0, min(per_context, 4096.0)))))


@dataclass(frozen=True, slots=True)
class Sglang042Options(SglangOptions):
    """Flags of 0.4.2.post4 where their defaults differ."""

    schedule_policy: str = "lpm"

    @property
    def profile(self) -> SglangProfile:
        """The release."""
        return SGLANG_0_4_2

    def resolved(self, gpu: Gpu, model_context: int) -> SglangOptions:
        """The same with every default decided: chunks of 2048 tokens below 25 GB, else 8192; EAGLE turns much off.

        Raises UsageError for what 0.4.2 does not allow together.
        """
        options = _checked(self)
        if options.speculative_algorithm:
            clash = [
                flag
                for flag, is_given in (
                    ("--chunked-prefill-size", (options.chunked_prefill_size or -1) > 0),
                    ("--enable-mixed-chunk", options.enable_mixed_chunk),
                )
                if is_given
            ]
            if clash:
                raise UsageError(
                    f"{' and '.join(clash)} cannot be had with {options.speculative_algorithm} in SGLang 0.4.2: it turns "
                    "chunked prefill, radix cache and overlap off.\n  Leave the flag out, or give --engine sglang (0.5)."
                )
            options = replace(
                _speculating(options, 5, 8, 64),
                chunked_prefill_size=-1,
                disable_radix_cache=True,
                disable_overlap_schedule=True,
            )
        chunk = options.chunked_prefill_size or (2048 if gpu.memory_gib < 25 else 8192)
        return options._with(chunk, options.mem_fraction_static or _MEMORY_0_4_2.get(options.tp_size, 0.81), model_context)


def _checked(options: SglangOptions) -> SglangOptions:
    """Raises UsageError for values that do not go together."""
    policy, release = options.schedule_policy, options.profile.release
    if policy == "priority" and options.profile.has_priorities:
        raise UsageError(
            "--schedule-policy priority: SGLang lists the name, but its scheduler has no such order and does not start.\n"
            "  Give --enable-priority-scheduling, with --schedule-policy fcfs or lof."
        )
    if policy not in options.profile.orders:
        raise UsageError(f"--schedule-policy {policy!r} is not known. Known in {release}: {', '.join(options.profile.orders)}.")
    drafter = options.speculative_algorithm
    if drafter and drafter not in options.profile.drafters:
        raise UsageError(
            f"--speculative-algorithm {drafter} does not exist in SGLang {release}: it drafts with "
            f"{', '.join(options.profile.drafters)} alone. Give --engine sglang (0.5)."
        )
    if options.enable_priority_scheduling and not options.profile.has_priorities:
        raise UsageError(f"--enable-priority-scheduling does not exist in SGLang {release}. Give --engine sglang (0.5).")
    if options.enable_priority_scheduling and policy not in ("fcfs", "lof"):
        raise UsageError(f"--enable-priority-scheduling needs --schedule-policy fcfs or lof, as in SGLang; it is {policy}.")
    if options.pp_size > 1 and not options.profile.has_stages:
        raise UsageError(f"SGLang {release} has no pipeline stages. Leave --pp-size out, or give --engine sglang (0.5).")
    if policy == "shortest-prefill-first" and options.disable_radix_cache:
        raise UsageError(
            "--schedule-policy shortest-prefill-first goes by what the cache holds: leave --disable-radix-cache out."
        )
    chunk, page = options.chunked_prefill_size, options.page_size
    if chunk is not None and chunk > 0 and chunk % page:
        raise UsageError(f"--chunked-prefill-size {chunk} is not a multiple of --page-size {page}.")
    if options.enable_mixed_chunk and chunk is not None and chunk < 0:
        raise UsageError("--enable-mixed-chunk needs chunked prefill: leave --chunked-prefill-size -1 out.")
    return options


def _speculating(options: SglangOptions, steps: int, topk: int, tokens: int) -> SglangOptions:
    """With the shape of a draft decided: of one candidate a step it is a chain, whose nodes are its steps and the root."""
    if not options.speculative_algorithm:
        return options
    topk = options.speculative_eagle_topk or topk
    asked_tokens = options.speculative_num_draft_tokens
    if topk == 1:
        steps = options.speculative_num_steps or max(asked_tokens - 1, 0) or steps
        tokens = steps + 1
    else:
        steps, tokens = options.speculative_num_steps or steps, asked_tokens or tokens
    return replace(options, speculative_num_steps=steps, speculative_eagle_topk=topk, speculative_num_draft_tokens=tokens)
