"""What the engine says before the run, in the form that the run needs: model, clock, facts, a way to make prompts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from longbench_sched.engine.dialect import Dialect
from longbench_sched.errors import TargetError, UsageError
from longbench_sched.load.probe import (
    Preflight,
    ProbeOptions,
    open_server_tokenizer,
    probe,
    read_prefix_hits,
    read_server_lateness_ms,
)
from longbench_sched.load.proxy import environment_proxy
from longbench_sched.run import RunMeta
from longbench_sched.target import Target
from longbench_sched.workload.prompt import PromptForm, PromptMaker
from longbench_sched.workload.tokens import open_tokenizer

_NEEDS_NO_TOKENIZER = ("synthetic", "ids")  # where the engine takes token ids


def probe_options(
    target: Target, *, ca_file: Path | None, insecure: bool, proxy_from_env: bool, connect_s: float | None
) -> ProbeOptions:
    """How the server is asked. Raises UsageError for a proxy that cannot be used."""
    proxy = environment_proxy(target.endpoint, os.environ) if proxy_from_env else None
    defaults = ProbeOptions()
    return ProbeOptions(ca_file, insecure, proxy, connect_s if connect_s is not None else defaults.connect_s)


def ask_engine(target: Target, options: ProbeOptions, *, must_answer: bool) -> Preflight:
    """Ask the engine who it is. Without `must_answer` (--no-preflight) the run goes on whatever it says."""
    try:
        return probe(target, options)
    except TargetError:
        if must_answer:
            raise
    if target.model is None:
        raise UsageError("--no-preflight: the engine does not say which model it serves. Name it with --model.")
    return Preflight(model=target.model)


@contextmanager
def prompt_maker(
    target: Target, dialect: Dialect, preflight: Preflight, options: ProbeOptions, source: str, tokenizer: Path | None
) -> Iterator[PromptMaker]:
    """How prompts of an exact length are made for this engine: by ids, by a local tokenizer, or by the server's own."""
    form: PromptForm = "chat" if dialect.api == "chat" else "ids" if dialect.takes_token_ids else "text"
    failure = None
    if tokenizer is not None:
        local, failure = open_tokenizer(tokenizer)
        if local is not None:
            yield PromptMaker(form, local)
            return
    if form == "ids" and source in _NEEDS_NO_TOKENIZER:
        yield PromptMaker(form, None, failure)
        return
    served = open_server_tokenizer(target, preflight.model, options)
    try:
        yield PromptMaker(form, served, failure)
    finally:
        if served is not None:
            served.close()


def engine_facts(preflight: Preflight) -> dict[str, Any]:
    """All that was learned, for the record."""
    facts = dict(preflight.facts) | dict(preflight.announcement)
    if preflight.template_overhead is not None:
        facts["template_overhead"] = preflight.template_overhead
    if preflight.capability:
        facts["streams"] = dict(preflight.capability)
    return facts


def server_lateness_ms(target: Target, preflight: Preflight, options: ProbeOptions) -> float | None:
    """How late the embedded engine was by its own account; None for any other engine."""
    return read_server_lateness_ms(target, options) if preflight.is_simulated else None


def with_prefix_hits(meta: RunMeta, before: int | None, target: Target, options: ProbeOptions) -> RunMeta:
    """The run's facts, with what the server's prefix cache gave since `before` if the server counts that.

    vLLM does not say it in its answers unless it is started so; then this is all that shows that prompts were known to it.
    """
    after = None if before is None else read_prefix_hits(target, options)
    if before is None or after is None or after < before:  # a server that was restarted begins anew
        return meta
    return replace(meta, engine_facts={**meta.engine_facts, "prefix_hit_tokens": after - before})
