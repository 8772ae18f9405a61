"""Order: which run comes when.

Runs go in blocks. A block is one load and one repeat, with every target once, back to back: whatever drifts (heat, neighbours,
the time of day) moves all of a block together, and pairs within it cancel it. Within a block the order of the targets
alternates (ABBA) or is drawn at random, so that none is always first; repeats are the outer loop, so that each load is spread
over the whole time.

In a block all targets get the same lengths and due times. What prompts say comes from the seed, the load, the block and the
index, so no prompt comes twice to a server; targets that share a server get prompts of their own, since the second would meet
a prefix cache warmed by the first.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longbench_sched.experiment.matrix import Experiment, LoadSpec, TargetSpec, share_a_server

_MAX_WORD = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of an experiment, before it is made."""

    key: str  # target, load and block as a part of a file name: vllm-8k.30k-500-c64.3
    target: TargetSpec
    load: LoadSpec
    block: int
    target_place: int  # in the experiment
    place: int  # within the block
    seed: int
    repeat: int  # goes into what prompts say
    content: str  # as well

    def facts(self, experiment_id: str) -> dict[str, Any]:
        """Its place among the others, as the run is stored with it."""
        return {
            "id": experiment_id,
            "target": self.target.name,
            "target_place": self.target_place,
            "cell": self.load.label,
            "params": self.load.params,
            "block": self.block,
            "place": self.place,
            **({"gpus": self.target.gpus} if self.target.gpus is not None else {}),
            **({"dollars_per_hour": self.target.dollars_per_hour} if self.target.dollars_per_hour is not None else {}),
        }


def make_cells(experiment: Experiment) -> list[Cell]:
    """All runs in the order in which they are made."""
    shared = share_a_server(experiment.targets)
    again = f" {experiment.content}" if experiment.content else ""
    words = _words(experiment.loads)
    cells: list[Cell] = []
    for block in range(experiment.repeats):
        for number, load in enumerate(experiment.loads):
            for place, target_place in enumerate(_places(experiment, block, number)):
                target = experiment.targets[target_place]
                apart = f" @{target.name}" if target.name in shared else ""
                cells.append(
                    Cell(
                        key=_key(experiment, target, words[number], block),
                        target=target,
                        load=load,
                        block=block,
                        target_place=target_place,
                        place=place,
                        seed=experiment.seed + (block if experiment.vary == "schedule" else 0),
                        repeat=block,
                        content=load.label + apart + again,
                    )
                )
    return cells


def _places(experiment: Experiment, block: int, load: int) -> list[int]:
    """The targets of one block, in order: forward and backward in turn, or drawn."""
    places = list(range(len(experiment.targets)))
    if experiment.order == "random":
        random.Random(f"{experiment.seed} {block} {load}").shuffle(places)
        return places
    return places if block % 2 == 0 else places[::-1]


def _key(experiment: Experiment, target: TargetSpec, load: str, block: int) -> str:
    parts = [target.name] if len(experiment.targets) > 1 else []
    if len(experiment.loads) > 1:
        parts.append(load)
    return ".".join([*parts, str(block + 1)])


def _words(loads: Sequence[LoadSpec]) -> list[str]:
    """The loads as parts of a file name, no two alike: labels may differ in what a file name cannot hold, or at their ends."""
    words: list[str] = []
    for load in loads:
        word = stem = _UNSAFE.sub("-", load.label)[:_MAX_WORD]
        again = 2
        while word in words:
            word, again = f"{stem}+{again}", again + 1
        words.append(word)
    return words
