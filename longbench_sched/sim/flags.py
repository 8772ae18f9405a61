"""An engine's own flags, read into its options: `--max-num-batched-tokens 4096`, `--no-enable-chunked-prefill`."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

from longbench_sched.errors import UsageError
from longbench_sched.quantity import count
from longbench_sched.sim.engine import OPTIONS, EngineOptions

MAX_NUMBER = 2**53
_SHARES = frozenset(
    {
        "gpu_memory_utilization",
        "mem_fraction_static",
        "kv_cache_free_gpu_memory_fraction",
        "watermark",
        "dynamic_chunking_smooth_factor",
    }
)
_QUEUES = frozenset({"max_num_queued_reqs", "max_num_queued_tokens", "max_queued_requests"})
# Every engine has one name for these; those who come from another know the others. Short: -tp, -pp.
_SPELLINGS = (("tensor_parallel_size", "tp_size", "tp"), ("pipeline_parallel_size", "pp_size", "pp"))
_SHORT = ("-tp", "-pp")
# What does the same in another engine; named, not taken, since the values are not always the same ones.
_COUNTERPARTS = (
    ("max_num_batched_tokens", "chunked_prefill_size", "max_num_tokens"),
    ("max_num_seqs", "max_running_requests", "max_batch_size"),
    ("max_model_len", "context_length", "max_seq_len"),
    ("gpu_memory_utilization", "mem_fraction_static", "kv_cache_free_gpu_memory_fraction"),
)
_FROM_ZERO = _QUEUES | {"dynamic_chunking_smooth_factor", "priority_scheduling_preemption_threshold", "batch_timeout_s"}
_TRUE, _FALSE = frozenset({"1", "true", "on", "yes"}), frozenset({"0", "false", "off", "no"})


def read_flags(engine: str, words: Sequence[str]) -> EngineOptions:
    """Options of that engine with these flags applied.

    Dashes equal underscores; a boolean flag stands alone, takes a value, or is negated by `--no-`. Raises UsageError.
    """
    if engine not in OPTIONS:
        raise UsageError(f"the embedded engine does not play {engine!r}. Known: {', '.join(OPTIONS)}.")
    options = OPTIONS[engine]()
    kinds = {field.name: _kind(type(options), field.name) for field in fields(options)}
    given: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if word.partition("=")[0] in _SHORT:
            word = f"-{word}"
        if not word.startswith("--"):
            raise UsageError(f"{word!r} is no flag of {engine}. Flags begin with --.")
        name, has_value, value = word[2:].partition("=")
        name = _own_name(name.replace("-", "_"), kinds)
        negated = name.removeprefix("no_")
        if name not in kinds and negated in kinds and kinds[negated] is bool:
            given[negated] = False
            continue
        if name == "speculative_config" and "speculative_method" in kinds:
            given |= _speculative(word, value if has_value else left.pop(0) if left else "")
            continue
        if name not in kinds:
            lacks: Mapping[str, str] = getattr(options, "lacks", {})
            if why := lacks.get(name) or lacks.get(negated):
                raise UsageError(f"{word.partition('=')[0]}: {why}")
            near = _counterparts(name, kinds) or get_close_matches(name, kinds, n=1)
            hint = f" Did you mean --{near[0].replace('_', '-')}?" if near else ""
            known = ", ".join(f"--{key.replace('_', '-')}" for key in kinds)
            raise UsageError(
                f"--{name.replace('_', '-')} is not a flag that the embedded {engine} knows.{hint}\n  Known: {known}."
            )
        if not has_value and kinds[name] is bool and (not left or left[0].casefold() not in _TRUE | _FALSE):
            given[name] = True
            continue
        if not has_value:
            if not left:
                raise UsageError(f"{word} needs a value.")
            value = left.pop(0)
        given[name] = _value(word, kinds[name], value)
        _check_choice(word, value, _choices(type(options), name))
        _check_number(word, name, given[name], getattr(options, name))
    return replace(options, **given)


def _own_name(name: str, known: Collection[str]) -> str:
    """The engine's own spelling of a parallel size."""
    names = next((names for names in _SPELLINGS if name in names), ())
    return next((one for one in names if one in known), name)


def _counterparts(name: str, known: Collection[str]) -> list[str]:
    """What the flag of another engine is called here."""
    return [one for names in _COUNTERPARTS if name in names for one in names if one in known]


def _choices(owner: type[EngineOptions], name: str) -> tuple[str, ...]:
    """Words that a flag takes; () for one that takes any."""
    hint = get_type_hints(owner)[name]
    return get_args(hint) if get_origin(hint) is Literal else ()


def _check_choice(flag: str, value: str, choices: tuple[str, ...]) -> None:
    if choices and value not in choices:
        raise UsageError(f"{flag} {value!r} is not known. Known: {', '.join(filter(None, choices))}.")


def _kind(owner: type[EngineOptions], name: str) -> type:
    hint = get_type_hints(owner)[name]
    if get_origin(hint) is Literal:
        return str
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    return kinds[0]  # type: ignore[no-any-return]  # typing's hints are Any


def _value(flag: str, kind: type, text: str) -> bool | int | float | str:
    if kind is bool:
        if text.casefold() in _TRUE | _FALSE:
            return text.casefold() in _TRUE
        raise UsageError(f"{flag}: {text!r} is neither true nor false.")
    if kind is str:
        return text
    try:
        if kind is float:
            return float(text)
        return -count(text[1:], flag) if text.startswith("-") else count(text, flag)
    except ValueError:
        raise UsageError(f"{flag}: {text!r} is not a number.") from None


def _check_number(flag: str, name: str, value: bool | float | str, default: object) -> None:
    """Raise UsageError for a number that no engine runs with: only what is 0 by default, or a queue, is 0, and one -1."""
    if isinstance(value, bool | str) or (name == "chunked_prefill_size" and value == -1):
        return
    least = 0 if default == 0 or name in _FROM_ZERO else 1 if isinstance(value, int) else math.ulp(0.0)
    if not least <= value < MAX_NUMBER:
        raise UsageError(f"{flag}: {value:g} is {'too small' if value < least else 'not a number to run with'}.")
    if name in _SHARES and value > 1:
        raise UsageError(f"{flag}: {value:g} is more than all there is. Give a share from 0 to 1.")


def _speculative(flag: str, text: str) -> dict[str, str | int]:
    """Read `--speculative-config` of vLLM, a JSON object of which method and number of tokens matter."""
    example = 'for example {"method": "eagle3", "num_speculative_tokens": 3}'
    try:
        config = json.loads(text)
    except json.JSONDecodeError:
        raise UsageError(f"{flag}: {text!r} is not JSON. Write {example}.") from None
    n = config.get("num_speculative_tokens") if isinstance(config, dict) else None
    if not isinstance(n, int) or n < 1:
        raise UsageError(f"{flag}: num_speculative_tokens is missing. Write {example}.")
    return {"speculative_method": str(config.get("method", "draft_model")), "num_speculative_tokens": n}
