"""Flags on the drafter of a simulated engine: the engine's own flags turn speculation on, these say how it is played."""

from __future__ import annotations

from typing import Annotated

import typer

DRAFT = "Speculation (turned on by the engine's own flags)"

DraftMethod = Annotated[
    str | None,
    typer.Option(
        "--draft-method",
        help="Play the drafter as a set that no flag names: eagle3.1 (a claimed maximum), self, cascade, ... "
        "Default: what the flag says.",
        rich_help_panel=DRAFT,
    ),
]
DraftModel = Annotated[
    str | None, typer.Option("--draft-model", help="The model that drafts: a name, or a config.json.", rich_help_panel=DRAFT)
]
DraftWindow = Annotated[
    int | None,
    typer.Option("--draft-window", help="Tokens of history that the drafter sees, 2048. Default: all.", rich_help_panel=DRAFT),
]
DraftLayerShare = Annotated[
    float | None,
    typer.Option(
        "--draft-layer-share",
        help="Share of the target's layers with which self drafts, 0 to 1. Default: 0.5.",
        rich_help_panel=DRAFT,
    ),
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


def draft_words(
    draft_method: str | None,
    draft_model: str | None,
    draft_window: int | None,
    draft_layer_share: float | None,
    acceptance_rate: float | None,
    acceptance_length: str | None,
) -> dict[str, str]:
    """What was given, as words by the names of `DRAFT_KNOBS`."""
    from longbench_sched.sim.draft_knobs import DRAFT_KNOBS

    given = (draft_method, draft_model, draft_window, draft_layer_share, acceptance_rate, acceptance_length)
    return {knob: str(value) for knob, value in zip(DRAFT_KNOBS, given, strict=True) if value is not None}
