"""Plays a scenario to the SGLang policy step by step, and writes down what it decided in the form of the recorded traces.

A step is `[number, mode, [[request, tokens before, tokens], ...], chunked, retracted, running, is full, waiting, ratio, unused
tokens, evictable tokens, emitted, finished, unused at the end, evictable at the end]`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from longbench_sched.sim.content import Content, first, group_stream, joined, length_of, prompt_stream
from longbench_sched.sim.engine import sglang_state
from longbench_sched.sim.policy.sglang import Sglang, SglangNote, SglangOptions
from longbench_sched.sim.step import Sequence, StepPlan

# Small, so that a page of steps shows something; not SGLang's.
DEFAULTS = {"chunked_prefill_size": 256, "max_total_tokens": 4096, "max_running_requests": 16}


@dataclass
class Replay:
    """One scenario on one policy."""

    knobs: dict[str, Any]
    requests: list[dict[str, Any]]
    sequences: dict[int, Sequence] = field(default_factory=dict)
    max_steps: int = 10_000

    def __post_init__(self) -> None:
        options = SglangOptions(**(DEFAULTS | self.knobs))
        self.policy = Sglang(options)
        self.state = sglang_state(options, (options.max_total_tokens or 0) // options.page_size)
        self.groups: dict[str, int] = {}
        self.pending = deque(sorted(range(len(self.requests)), key=lambda i: self.requests[i]["at"]))

    def steps(self) -> list[list[Any]]:
        """Until nothing is left; idle iterations are left out."""
        rows: list[list[Any]] = []
        for number in range(self.max_steps):
            state = self.state
            if not (state.running or state.waiting or self.pending):
                return rows
            self.arrive(number)
            if not (state.running or state.waiting):
                state.n_planned = 0
                continue
            plan = self.policy.schedule(state, 0.0)
            before = {sequence: sequence.computed for sequence in state.sequences()}
            state.reserve(plan, 0.0)
            if plan.is_empty:
                state.n_planned = 0
                continue
            rows.append([number, *self.planned(plan, before), *self.outcome(plan)])
        return rows

    def arrive(self, number: int) -> None:
        while self.pending and self.requests[self.pending[0]]["at"] <= number:
            i = self.pending.popleft()
            asked = self.requests[i]
            sequence = Sequence(
                i, asked["isl"], asked["osl"], 0.0, content=self.content(i), runs_to_length=asked.get("ignore_eos", False)
            )
            self.sequences[i] = sequence
            self.state.enqueue(sequence)

    def content(self, i: int) -> Content:
        asked = self.requests[i]
        shared: Content = ()
        if "continues" in asked:
            shared = first(self.sequences[asked["continues"]].content_so_far(), asked["isl"])
        elif "group" in asked:
            group = self.groups.setdefault(asked["group"], len(self.groups))
            shared = joined((), (group_stream(group), 0, asked["prefix"]))
        return joined(shared, (prompt_stream(i), 0, asked["isl"] - length_of(shared)))

    def planned(self, plan: StepPlan, before: dict[Sequence, int]) -> list[Any]:
        state, note = self.state, self.state.note
        assert isinstance(note, SglangNote)
        lines = [[chunk.sequence.id, chunk.start, chunk.n_tokens] for chunk in plan.chunks]
        lines += [[sequence.id, before[sequence], 1] for sequence in plan.decodes]
        mode = "mixed" if plan.chunks and plan.decodes else "extend" if plan.chunks else "decode"
        in_batch = {chunk.sequence for chunk in plan.chunks}
        running = [] if mode == "mixed" else [one.id for one in state.running if one not in in_batch and not one.is_partial]
        return [
            mode,
            lines,
            note.chunked.id if note.chunked is not None else None,
            [sequence.id for sequence in plan.preempted],
            running,
            int(note.is_full),
            [sequence.id for sequence in state.waiting],
            round(note.ratio, 6),
            *self.pool(),
        ]

    def outcome(self, plan: StepPlan) -> list[Any]:
        yielded = self.state.advance(plan, 1.0)
        return [
            sorted([sequence.id, sequence.yielded_now] for sequence in yielded),
            sorted(sequence.id for sequence in yielded if sequence.finish is not None),
            *self.pool(),
        ]

    def pool(self) -> list[int]:
        kv = self.state.kv
        return [(kv.free - kv.idle) * kv.block_tokens, kv.idle * kv.block_tokens]


def differences(knobs: dict[str, Any], requests: list[dict[str, Any]], recorded: list[list[Any]]) -> list[str]:
    """The first step that differs from the recording, in words; empty if none does."""
    ours = Replay(knobs, requests).steps()
    for mine, theirs in zip(ours, recorded, strict=False):
        theirs = [*theirs[:11], sorted(theirs[11]), sorted(theirs[12]), *theirs[13:]]
        if mine != theirs:
            return [f"step {theirs[0]}", f"  ours     {mine}", f"  recorded {theirs}"]
    if len(ours) != len(recorded):
        return [f"{len(ours)} steps, recorded {len(recorded)}"]
    return []
