"""Flags on the drafter of a simulated engine: the engine's own flags turn speculation on, these say how well it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longbench_sched.errors import UsageError

if TYPE_CHECKING:
    from longbench_sched.sim.engine import EngineOptions
    from longbench_sched.sim.speculation import Wish

DRAFT = "Speculation (turned on by the engine's own flags)"

DraftModel = Annotated[
    str | None, typer.Option("--draft-model", help="The model that drafts: a name, or a config.json.", rich_help_panel=DRAFT)
]
DraftWindow = Annotated[
    int | None,
    typer.Option("--draft-window", help="Tokens of history that the drafter sees, 2048. Default: all.", rich_help_panel=DRAFT),
]
AcceptanceRate = Annotated[
    float | None,
    typer.Option("--acceptance-rate", help="How often a draft is right, 0 to 1. Default: the method's.", rich_help_panel=DRAFT),
]
AcceptanceLength = Annotated[
    str | None,
    typer.Option(
        "--acceptance-length",
        help="Or measured: tokens a step by context, with as many drafts as are asked for: 2Ki:3.1,32Ki:1.8.",
        rich_help_panel=DRAFT,
    ),
]


def read_wish(
    draft_model: str | None, draft_window: int | None, acceptance_rate: float | None, acceptance_length: str | None = None
) -> Wish:
    """What is asked of the drafter. Raises UsageError."""
    from longbench_sched.cli.model_flag import read_model
    from longbench_sched.sim.speculation import Wish

    model = None if draft_model is None else read_model(draft_model)
    lengths = () if acceptance_length is None else tuple(map(_read_length, acceptance_length.split(",")))
    return Wish(draft_model=model, draft_window=draft_window, alpha=acceptance_rate, lengths=lengths)


def _read_length(text: str) -> tuple[int, float]:
    from longbench_sched.quantity import count

    context, _, tokens = text.partition(":")
    try:
        return count(context.strip(), "--acceptance-length"), float(tokens)
    except ValueError:
        raise UsageError(
            f"--acceptance-length {text!r} is not CONTEXT:TOKENS. Write for example 2Ki:3.1,32Ki:1.8,128Ki:1.28."
        ) from None


def check_drafts(wish: Wish, options: EngineOptions) -> None:
    """Raises UsageError for a wish about drafts where the engine's flags ask for none."""
    from longbench_sched.sim.speculation import Wish

    if wish != Wish() and not (getattr(options, "num_speculative_tokens", 0) or getattr(options, "speculative_algorithm", "")):
        raise UsageError(
            "--draft-model, --draft-window, --acceptance-rate and --acceptance-length are of speculation, and nothing turns it "
            "on.\n  Give the engine's own flag (--num-speculative-tokens 3, --speculative-algorithm EAGLE3), or leave them out."
        )
