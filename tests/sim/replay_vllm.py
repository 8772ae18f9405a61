"""Plays a scenario to the vLLM policy step by step, and writes down what it decided in the form of the recorded traces.

A step is `[number, planned, read, free blocks, idle blocks]`: planned is [[[request, start, tokens, drafts], ...], hits,
preempted, [[running request, blocks], ...], waiting, free blocks] or null when there was nothing to schedule, read is [tokens
emitted, reasons of those that finished] of the step whose result came back. Requests are numbers in order of arrival.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from longbench_sched.sim.content import Content, first, group_stream, joined, length_of, prompt_stream
from longbench_sched.sim.engine import vllm_state
from longbench_sched.sim.policy.vllm_v1 import VllmV1, VllmV1Options
from longbench_sched.sim.step import Sequence, StepPlan

# Small, so that a page of steps shows something; not vLLM's.
DEFAULTS = {
    "max_num_batched_tokens": 512,
    "max_num_seqs": 16,
    "max_model_len": 8192,
    "num_blocks": 1024,
    "async_scheduling": False,
    "release": "0.32.0",
}
RENAMED = {"policy": "scheduling_policy"}


@dataclass
class Replay:
    """One scenario on one policy."""

    knobs: dict[str, Any]
    requests: list[dict[str, Any]]
    sequences: dict[int, Sequence] = field(default_factory=dict)
    verified: dict[int, int] = field(default_factory=dict)
    max_steps: int = 10_000

    def __post_init__(self) -> None:
        knobs = DEFAULTS | self.knobs
        blocks = knobs.pop("num_blocks") - 1  # one is a placeholder
        self.accepted_drafts = knobs.pop("accepted_drafts", [0])
        self.options = VllmV1Options(**{RENAMED.get(name, name): value for name, value in knobs.items()})
        self.policy = VllmV1(self.options)
        self.state = vllm_state(self.options, blocks)
        self.in_flight: deque[StepPlan] = deque()
        self.groups: dict[str, int] = {}
        self.pending = deque(sorted(range(len(self.requests)), key=lambda i: self.requests[i]["at"]))

    def steps(self) -> list[list[Any]]:
        """Until nothing is left."""
        rows: list[list[Any]] = []
        depth = 2 if self.options.async_scheduling else 1
        for number in range(self.max_steps):
            busy = bool(self.in_flight or self.state.running or self.state.waiting)
            if not busy and not self.pending:
                return rows
            if not busy and self.requests[self.pending[0]]["at"] > number:
                continue
            self.arrive(number)
            is_unfinished = bool(self.state.running or self.state.waiting)
            planned = self.schedule(number) if is_unfinished else None
            read = None
            if len(self.in_flight) == depth or (self.in_flight and not is_unfinished):
                read = self.read()
            rows.append([number, planned, read, self.state.kv.free, self.state.kv.idle])
        return rows

    def arrive(self, number: int) -> None:
        while self.pending and self.requests[self.pending[0]]["at"] <= number:
            i = self.pending.popleft()
            asked = self.requests[i]
            longest = self.options.max_model_len - asked["isl"]
            sequence = Sequence(
                i,
                asked["isl"],
                min(asked["osl"], longest),
                0.0,
                stop_at=asked.get("stop"),
                content=self.content(i),
                priority=asked.get("priority", 0),
            )
            self.sequences[i] = sequence
            self.state.enqueue(sequence)
        for i, asked in enumerate(self.requests):
            if asked.get("abort") == number and i in self.sequences:
                self.state.abort(self.sequences[i])

    def content(self, i: int) -> Content:
        asked = self.requests[i]
        shared: Content = ()
        if "continues" in asked:
            earlier = self.sequences[asked["continues"]]
            shared = first(earlier.content_so_far(), asked["isl"])
        elif "group" in asked:
            group = self.groups.setdefault(asked["group"], len(self.groups))
            shared = joined((), (group_stream(group), 0, asked["prefix"]))
        return joined(shared, (prompt_stream(i), 0, asked["isl"] - length_of(shared)))

    def schedule(self, number: int) -> list[Any]:
        state = self.state
        state.n_planned = number
        plan = self.policy.schedule(state, 0.0)
        drafts = {verify.sequence: verify.n_drafts for verify in plan.verifies}
        lines = {}
        for entry in plan.entries():
            sequence = entry.sequence
            start = entry.start if entry.kind == "prefill" else plan.hits.get(sequence, sequence.computed + sequence.in_flight)
            lines[sequence] = [sequence.id, start, entry.n_tokens, drafts.get(sequence, 0)]
        state.reserve(plan, 0.0)
        self.in_flight.append(plan)
        return [
            [lines[sequence] for sequence in state.running if sequence in lines],
            [[sequence.id, plan.hits.get(sequence, 0)] for sequence in plan.admitted],
            [sequence.id for sequence in plan.preempted],
            [[sequence.id, sequence.blocks] for sequence in state.running],
            [sequence.id for sequence in state.waiting],
            state.kv.free,
        ]

    def read(self) -> list[Any]:
        plan = self.in_flight.popleft()
        yielded = self.state.advance(plan, 1.0, self.accept)
        return [
            sorted([sequence.id, sequence.yielded_now] for sequence in yielded),
            sorted([sequence.id, sequence.finish] for sequence in yielded if sequence.finish is not None),
        ]

    def accept(self, sequence: Sequence, n_drafts: int) -> int:
        turn = self.verified.get(sequence.id, 0)
        self.verified[sequence.id] = turn + 1
        return min(self.accepted_drafts[turn % len(self.accepted_drafts)], n_drafts)


def normal(row: list[Any]) -> list[Any]:
    """A recorded step with the order of what has none made equal: hits first of new, then of resumed requests; emissions."""
    number, planned, read, free, idle = row
    if planned is not None:
        planned = [planned[0], sorted(planned[1]), *planned[2:]]
    if read is not None:
        read = [sorted(read[0]), sorted(read[1])]
    return [number, planned, read, free, idle]


def differences(knobs: dict[str, Any], requests: list[dict[str, Any]], recorded: list[list[Any]]) -> list[str]:
    """The first step that differs from the recording, in words; empty if none does."""
    ours = Replay(knobs, requests, max_steps=recorded[-1][0] + 2).steps()
    for mine, theirs in zip(ours, recorded, strict=False):
        if normal(mine) != normal(theirs):
            return [f"step {theirs[0]}", f"  ours     {normal(mine)}", f"  recorded {normal(theirs)}"]
    if len(ours) != len(recorded):
        return [f"{len(ours)} steps, recorded {len(recorded)}"]
    return []
