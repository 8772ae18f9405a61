"""Published claims about long-context scheduling, and what an answer to one is.

The statements, their numbers and what is right or wrong in them are data (`claims.json`, in our words). The experiment of a
claim (`claims_answered.py`) simulates or computes what can be, and gives an `Answer`: what was published, what the model
predicts without having seen it, what it gives after a fit where there is one, and a verdict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from longbench_sched.errors import UsageError

Cell = str | float | int | None
Finding = Literal["holds", "partly", "fails", "open"]

FINDINGS: Mapping[Finding, str] = {
    "holds": "the model agrees",
    "partly": "true under a condition that the claim leaves out",
    "fails": "the model, or the engine's own rule, says otherwise",
    "open": "a model cannot decide it",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """What was said, by whom, and what is to be said of it."""

    id: str
    name: str  # a few words, for a line
    claim: str
    published: Mapping[str, Any]  # its numbers; {} where it has none
    source: str
    verified: bool  # whether the source was read
    correction: str


@dataclass(frozen=True, slots=True)
class Grid:
    """Figures behind an answer."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FittedValue:
    """A parameter that was fitted, and on what."""

    name: str
    value: float
    on: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the experiment of a claim gave. Short texts are for a line; figures are in `grids`."""

    published: str
    predicted: str
    finding: Finding
    fitted: str | None = None  # after a fit; None: nothing was fitted
    deviation: float | None = None  # of the last of the two figures from the published one
    grids: tuple[Grid, ...] = ()
    parameters: tuple[FittedValue, ...] = ()
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Answered:
    """A claim and its answer."""

    claim: Claim
    answer: Answer

    def as_json(self) -> dict[str, Any]:
        """Plain data; every figure is simulated or computed."""
        return {**asdict(self.claim), "simulated": True, "answer": asdict(self.answer)}


@cache
def load_claims() -> Mapping[str, Claim]:
    """All claims by id."""
    text = resources.files("longbench_sched.experiment").joinpath("claims.json").read_text("utf-8")
    return {row["id"]: Claim(**row) for row in json.loads(text)["claims"]}


def choose(ids: Sequence[str]) -> list[Claim]:
    """These claims, or all. Raises UsageError for an id that is none."""
    known = load_claims()
    wanted = [one.upper() for one in ids]
    for one in wanted:
        if one not in known:
            raise UsageError(f"no claim {one!r}. Known: {next(iter(known))} to {list(known)[-1]}.")
    return [known[one] for one in dict.fromkeys(wanted)] if wanted else list(known.values())
