"""The prefix cache by runs against one that keeps every block by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.sim.content import prompt_content
from longbench_sched.sim.prefix_cache import PrefixCache
from longbench_sched.sim.step import Sequence, StepPlan

SIZE = 4
Block = dict


@dataclass
class Plain:
    """A pool of single blocks, each known by all tokens up to its end: what the paragraph in the specification says."""

    total: int
    free: list[Block] = field(default_factory=list)  # to be taken from the front
    tables: dict[int, list[Block]] = field(default_factory=dict)
    known: list[Block] = field(default_factory=list)  # oldest first

    def __post_init__(self) -> None:
        self.free = [{"key": None, "users": 0} for _ in range(self.total)]

    def find(self, tokens: list, limit: int) -> list[Block]:
        found = []
        for end in range(SIZE, limit + 1, SIZE):
            block = next((one for one in self.known if one["key"] == tuple(tokens[:end])), None)
            if block is None:
                break
            found.append(block)
        return found

    def admit(self, number: int, tokens: list, n_blocks: int) -> int:
        found = self.find(tokens, len(tokens) - 1)
        for block in found:
            if not block["users"]:
                self.free = [one for one in self.free if one is not block]
            block["users"] += 1
        self.tables[number] = list(found)
        for end in range((len(found) + 1) * SIZE, len(found) * SIZE + n_blocks * SIZE + 1, SIZE):
            block = self.free.pop(0)
            self.known = [one for one in self.known if one is not block]
            block["key"], block["users"] = None, 1
            self.tables[number].append(block)
            if end <= len(tokens):
                block["key"] = tuple(tokens[:end])
                self.known.append(block)
        return len(found)

    def release(self, number: int) -> None:
        for block in reversed(self.tables.pop(number)):
            block["users"] -= 1
            if not block["users"]:
                if block["key"] is None:
                    self.free.insert(0, block)
                else:
                    self.free.append(block)


requests = st.lists(
    st.tuples(st.integers(1, 40), st.none() | st.integers(0, 1), st.integers(1, 40), st.booleans()), min_size=1, max_size=25
)


@settings(max_examples=300)
@given(requests)
def test_runs_find_keep_and_evict_what_single_blocks_do(work) -> None:
    """Requests come, compute everything, and go in any order; whoever does not fit lets the oldest go first."""
    cache, plain = PrefixCache(14, SIZE), Plain(14)
    held: list[Sequence] = []
    for number, (isl, group, prefix, leaves_first) in enumerate(work):
        content = prompt_content(number, isl, group=group, prefix_tokens=prefix)
        tokens = [(stream, start + i) for stream, start, n in content for i in range(n)]
        sequence = Sequence(number, isl, 1, 0.0, content=content)
        if leaves_first and held:
            leave(cache, plain, held.pop(0))
        while True:
            found = cache.match(sequence, isl - 1)
            hit = found[-1][2] if found else 0
            assert hit == len(plain.find(tokens, isl - 1))
            needed = cache.blocks_for(isl) - hit
            if needed + cache.idle_blocks(found) <= cache.free or not held:
                break
            leave(cache, plain, held.pop(0))
        rehearsed(cache, sequence, hit, needed)
        cache.adopt(sequence, hit * SIZE)
        cache.grow(sequence, needed)
        assert plain.admit(number, tokens, needed) == hit
        sequence.computed = isl
        held.append(sequence)
        assert (cache.free, cache.idle) == counted(plain)
    for sequence in held:
        leave(cache, plain, sequence)
    assert cache.free == 14
    cache.forget_idle()
    assert (cache.free, cache.idle) == (14, 0)


def leave(cache: PrefixCache, plain: Plain, sequence: Sequence) -> None:
    cache.release(sequence)
    plain.release(sequence.id)
    assert (cache.free, cache.idle) == counted(plain)


def counted(plain: Plain) -> tuple[int, int]:
    return len(plain.free), sum(one["key"] is not None for one in plain.free)


def rehearsed(cache: PrefixCache, sequence: Sequence, hit: int, needed: int) -> None:
    """What is tried out is taken back to the last run."""
    before = picture(cache), sequence.blocks, sequence.table
    cache.rehearse(StepPlan())
    cache.adopt(sequence, hit * SIZE)
    cache.grow(sequence, needed)
    cache.release(sequence)
    cache.undo()
    assert (picture(cache), sequence.blocks, sequence.table) == before


def picture(cache: PrefixCache) -> tuple:
    nodes = {key: [(run.lo, run.hi, len(run.holders)) for run in node.runs] for key, node in cache._nodes.items()}
    order, run = [], cache._ring.newer
    while run is not cache._ring:
        order.append((run.lo, run.hi))
        run = run.newer
    return nodes, order, cache.free, cache.idle


def test_a_long_prompt_is_an_object_or_two() -> None:
    """30,000 tokens in blocks of 16 are 1,875 blocks; with the output to come, two runs."""
    cache = PrefixCache(4000, 16)
    sequence = Sequence(0, 30_000, 500, 0.0)
    cache.adopt(sequence, 0)
    cache.grow(sequence, 1875)
    sequence.computed = 30_000
    assert len(sequence.table) == 2
    cache.release(sequence)
    assert cache.idle == 1875


def test_the_output_of_one_turn_is_found_by_the_next() -> None:
    """Turn 1: 20 tokens and 12 of output, of which the last has no KV: 31 tokens, 7 blocks of 4. Turn 2 begins with all 32."""
    cache = PrefixCache(100, 4)
    one = Sequence(0, 20, 12, 0.0)
    cache.adopt(one, 0)
    cache.grow(one, 8)
    one.generated, one.computed = 12, 31
    two = Sequence(1, 50, 4, 0.0, content=(*one.content_so_far(), (2, 0, 18)))
    cache.release(one)
    assert cache.found_tokens(two) == 28
