"""What is asked of a drafter in words: knobs that no engine has, since no engine needs to be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from longbench_sched.errors import UsageError
from longbench_sched.quantity import count
from longbench_sched.sim.engine import EngineOptions
from longbench_sched.sim.models import Model, find_model
from longbench_sched.sim.speculation import Wish

DRAFT_KNOBS = (
    "draft_method",
    "draft_model",
    "draft_window",
    "draft_layer_share",
    "acceptance_rate",
    "acceptance_length",
)


def draft_flag(knob: str) -> str:
    """`--draft-method`."""
    return f"--{knob.replace('_', '-')}"


def read_drafts(words: Mapping[str, str], read_model: Callable[[str], Model] = find_model) -> Wish:
    """A wish from words by the names of `DRAFT_KNOBS`. Raises UsageError."""
    model, window, layers, rate = (
        words.get(knob) for knob in ("draft_model", "draft_window", "draft_layer_share", "acceptance_rate")
    )
    return Wish(
        method=words.get("draft_method", "").casefold(),
        draft_model=None if model is None else read_model(model),
        draft_window=None if window is None else count(window, draft_flag("draft_window")),
        layer_share=None if layers is None else _share(layers, "draft_layer_share"),
        alpha=None if rate is None else _share(rate, "acceptance_rate"),
        lengths=tuple(map(_length, words["acceptance_length"].split(","))) if "acceptance_length" in words else (),
    )


def check_drafts(wish: Wish, options: EngineOptions) -> None:
    """Raises UsageError for a wish about drafts where the engine's flags ask for none."""
    if wish != Wish() and not (getattr(options, "num_speculative_tokens", 0) or getattr(options, "speculative_algorithm", "")):
        raise UsageError(
            f"{', '.join(map(draft_flag, DRAFT_KNOBS))} are of speculation, and nothing turns it on.\n"
            "  Give the engine's own flag (--num-speculative-tokens 3, --speculative-algorithm EAGLE3), or leave them out."
        )


def _share(text: str, knob: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{draft_flag(knob)} {text!r} is not a number. Give a share from 0 to 1.") from None


def _length(text: str) -> tuple[int, float]:
    context, _, tokens = text.partition(":")
    try:
        return count(context.strip(), "--acceptance-length"), float(tokens)
    except ValueError:
        raise UsageError(
            f"--acceptance-length {text!r} is not CONTEXT:TOKENS. Write for example 2Ki:3.1,32Ki:1.8,128Ki:1.28."
        ) from None
