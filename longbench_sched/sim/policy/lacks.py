"""What a scheduler does not have, and why: said instead of "no such flag" to whoever asks for it by any engine's name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_CHUNKS = ("enable_chunked_prefill", "chunked_prefill_size", "enable_mixed_chunk")
_CACHE = ("enable_prefix_caching", "enable_block_reuse", "disable_radix_cache")
_DRAFTS = ("num_speculative_tokens", "speculative_config", "speculative_algorithm")
_STAGES = ("pipeline_parallel_size", "pp_size", "pp")


def lacking(*, chunks: str = "", cache: str = "", drafts: str = "", stages: str = "") -> Mapping[str, str]:
    """Reasons by flag; "" for what the scheduler has."""
    groups = ((_CHUNKS, chunks), (_CACHE, cache), (_DRAFTS, drafts), (_STAGES, stages))
    return MappingProxyType({flag: reason for flags, reason in groups if reason for flag in flags})
