"""One step of an engine: the sequences, and the plan of what one forward pass does with them.

A sequence of p prompt tokens that has generated g has `length` p + g. `computed` of these have their KV. A step that brings
`computed` up to `length` yields one more token; prefill, decode and recomputation after a preemption are one and the same. A
verification computes the missing token and some drafts after it and yields 1 + the drafts accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from longbench_sched.sim.content import Content, joined, output_stream, prompt_content

if TYPE_CHECKING:
    from longbench_sched.sim.prefix_cache import Run
    from longbench_sched.sim.radix_cache import TreeNode

Kind = Literal["prefill", "decode", "verify"]

RELEASE = -1  # in `StepPlan.blocks`: the sequence gives all its blocks back


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine."""

    id: int  # order of arrival
    isl: int
    max_new: int  # output tokens after which it ends by length
    arrived_s: float
    stop_at: int | None = None  # output tokens after which it ends by itself (EOS); None: never
    runs_to_length: bool = False  # asked to ignore EOS, as far as the engine is told
    content: Content | None = None  # of the prompt, if any of it may be shared
    priority: int = 0  # lower is more urgent
    computed: int = 0
    generated: int = 0
    yielded_now: int = 1  # tokens it got from the last step that gave it any
    blocks: int = 0
    cached: int = 0  # tokens found in a cache when it was last admitted
    n_preemptions: int = 0
    is_running: bool = False
    is_partial: bool = False  # its last chunk did not reach the end of the prompt
    drafts: int = 0  # waiting to be verified
    in_flight: int = 0  # tokens planned and not yet computed
    expected: int = 0  # output tokens that these will yield at most
    stale: int = 0  # of `in_flight`, planned before its last preemption
    n_piped: int = 0  # micro-batches on their way through pipeline stages that it is in; `computed` counts their tokens already
    filled: int = 0  # tokens whose blocks may be found, where `computed` does not say it
    table: tuple[Run, ...] = ()
    node: TreeNode | None = None  # of a radix tree: where what was found ends, and what is locked
    kept: int = 0  # tokens of it that are the tree's
    is_contested: bool = False  # somebody else computes the same content at the same time
    queued_after: int = 0  # prompt tokens that the engine had computed when it last came into the queue
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finish: Literal["length", "stop", "abort"] | None = None

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return self.isl + self.generated

    @property
    def left_to_compute(self) -> int:
        """Tokens without KV: 1 for a sequence that decodes."""
        return self.isl + self.generated - self.computed

    @property
    def max_length(self) -> int:
        """The longest it can become."""
        return self.isl + self.max_new

    @property
    def output_stream(self) -> int:
        """The name of what it generates."""
        return output_stream(self.id)

    def content_so_far(self) -> Content:
        """Prompt and output, by name."""
        prompt = self.content if self.content is not None else prompt_content(self.id, self.isl)
        return joined(prompt, (self.output_stream, 0, self.generated))

    def __lt__(self, other: Sequence) -> bool:
        """More urgent, or as urgent and here before."""
        return (self.priority, self.id) < (other.priority, other.id)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a prompt (or of a recomputation) computed in one step."""

    sequence: Sequence
    n_tokens: int
    start: int  # tokens before it whose KV exists

    @property
    def is_last(self) -> bool:
        """Whether it brings the sequence to its next token."""
        return self.start + self.n_tokens == self.sequence.length


@dataclass(frozen=True, slots=True)
class Verify:
    """A decode that also computes drafts: a chain of `n_drafts`, or a tree of that depth with more nodes than that."""

    sequence: Sequence
    n_drafts: int
    n_tokens: int  # computed: 1 + n_drafts, or the nodes of the tree


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a plan, for checks and traces."""

    sequence: Sequence
    n_tokens: int
    start: int
    kind: Kind


@dataclass(slots=True)
class StepPlan:
    """What one forward pass does. Decodes are kept apart from chunks because there are many of them and all are alike."""

    chunks: list[Chunk] = field(default_factory=list)
    decodes: list[Sequence] = field(default_factory=list)
    verifies: list[Verify] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)  # leave the queue, in this order
    hits: dict[Sequence, int] = field(default_factory=dict)  # tokens that those admitted find in a cache
    preempted: list[Sequence] = field(default_factory=list)  # lose their KV and go back to the queue, in this order
    preempted_to_tail: bool = False  # to the end of the queue instead of its head
    # Blocks further taken, or RELEASE, in the order in which it is done; a line for everyone admitted or preempted.
    blocks: list[tuple[Sequence, int]] = field(default_factory=list)
    withdrawn: dict[Sequence, int] = field(default_factory=dict)  # tokens of those preempted that were in this plan before
    lookups: list[tuple[Sequence, int]] = field(default_factory=list)  # prefixes looked up in a tree that remembers it
    room: dict[Sequence, tuple[int, int]] = field(default_factory=dict)  # blocks evicted until, before and after a release
    queue: list[Sequence] | None = None  # the queue in a new order, before admissions
    order: list[Sequence] | None = None  # the running list in a new order, after admissions
    note: object | None = None
    padding: int = 0  # slots that compute and yield nothing
    wait_s: float = 0.0  # of an empty plan: look again after so long, or when somebody comes
    # The policy would decide the same again and again while all get their token and nobody comes, ends or lacks memory.
    is_steady: bool = False
    note_after: Callable[[int], object] | None = None  # the note when it has decided the same so many times more

    @property
    def n_tokens(self) -> int:
        """Tokens computed, padding left out."""
        total = len(self.decodes) + sum(chunk.n_tokens for chunk in self.chunks)
        return total + sum(verify.n_tokens for verify in self.verifies) if self.verifies else total

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.decodes and not self.chunks and not self.verifies

    def entries(self) -> Iterator[Entry]:
        """Line by line. Where steps are planned ahead, as things stand when the step is computed."""
        for chunk in self.chunks:
            yield Entry(chunk.sequence, chunk.n_tokens, chunk.start, "prefill")
        for sequence in self.decodes:
            yield Entry(sequence, 1, sequence.computed, "decode")
        for verify in self.verifies:
            yield Entry(verify.sequence, verify.n_tokens, verify.sequence.computed, "verify")

    def filled_after(self) -> dict[Sequence, int]:
        """Tokens of each sequence in the plan that it will leave for others to find; drafts are not among them."""
        filled = {chunk.sequence: chunk.start + chunk.n_tokens for chunk in self.chunks}
        for sequence in self.decodes:
            filled[sequence] = min(sequence.computed + sequence.in_flight + 1, sequence.length)
        for verify in self.verifies:
            sequence = verify.sequence
            filled[sequence] = min(begin_of(sequence, self) + 1 + verify.n_drafts, sequence.length)
        for sequence, n in self.withdrawn.items():
            filled[sequence] = min(sequence.computed + sequence.in_flight + n, sequence.length)
        return filled


def begin_of(sequence: Sequence, plan: StepPlan) -> int:
    """Tokens before those that the plan computes."""
    return plan.hits.get(sequence, 0) if not sequence.is_running else sequence.computed + sequence.in_flight
