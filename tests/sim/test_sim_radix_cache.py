"""The radix tree: what it finds, locks, splits and evicts, token by token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.sim import radix_cache
from longbench_sched.sim.content import prompt_content
from longbench_sched.sim.radix_cache import RadixCache
from longbench_sched.sim.step import Sequence, StepPlan


def computed(cache: RadixCache, number: int, isl: int, group: int | None = None, prefix: int = 0) -> Sequence:
    """A request that has computed its prompt and is running."""
    sequence = Sequence(number, isl, 4, 0.0, content=prompt_content(number, isl, group=group, prefix_tokens=prefix))
    hit = cache.found_tokens(sequence)
    cache.adopt(sequence, hit)
    cache.grow(sequence, cache.blocks_for(isl) - sequence.blocks)
    sequence.computed, sequence.generated = isl, 1
    cache.progress(sequence)
    return sequence


def end(cache: RadixCache, sequence: Sequence) -> None:
    sequence.finish = "length"
    cache.release(sequence)


def test_a_prefix_is_found_token_by_token_and_shared() -> None:
    """100 tokens of which 81 are common: the second request takes 19 of its own."""
    cache = RadixCache(1000, 1)
    one = computed(cache, 0, 100, group=0, prefix=81)
    two = computed(cache, 1, 100, group=0, prefix=81)
    assert two.cached == 81
    assert cache.free == 1000 - 119
    end(cache, one)
    end(cache, two)
    assert (cache.free, cache.idle, cache.unused) == (1000, 119, 881)


def test_an_exact_repetition_computes_one_token_and_gives_it_back() -> None:
    cache = RadixCache(1000, 1)
    computed(cache, 0, 96, group=0, prefix=96)
    again = computed(cache, 1, 96, group=0, prefix=96)
    assert again.cached == 95
    assert cache.free == 1000 - 96


def test_pages_are_found_whole_or_not_at_all() -> None:
    cache = RadixCache(100, 4)
    computed(cache, 0, 23, group=0, prefix=23)
    again = Sequence(1, 23, 4, 0.0, content=prompt_content(1, 23, group=0, prefix_tokens=23))
    assert cache.found_tokens(again) == 20


def test_the_leaf_that_nobody_looked_at_for_longest_goes_first_and_a_locked_path_stays() -> None:
    cache = RadixCache(100, 1)
    old, young, busy = computed(cache, 0, 30), computed(cache, 1, 30), computed(cache, 2, 30)
    end(cache, old)
    end(cache, young)
    cache.make_room(20)
    assert (cache.unused, cache.idle) == (40, 30)
    gone = Sequence(9, 31, 1, 0.0, content=((0, 0, 30), (18, 0, 1)))
    kept = Sequence(10, 31, 1, 0.0, content=((2, 0, 30), (20, 0, 1)))
    assert cache.found_tokens(gone) == 0
    assert cache.found_tokens(kept) == 30
    cache.make_room(100)
    assert cache.unused == 70
    end(cache, busy)
    assert cache.free == 100


def test_a_retracted_request_leaves_its_own_tokens_to_nobody() -> None:
    """Its prompt was in the tree since its prefill; the 10 tokens that it generated are gone."""
    cache = RadixCache(100, 1)
    sequence = computed(cache, 0, 30)
    cache.grow(sequence, 10)
    sequence.generated, sequence.computed = 11, 40
    cache.release(sequence)
    assert (cache.unused, cache.idle) == (70, 30)


def chunk(cache: RadixCache, sequence: Sequence, n: int) -> None:
    """Compute `n` more tokens of a prompt in progress."""
    cache.grow(sequence, n)
    sequence.computed += n
    cache.progress(sequence)


def test_a_path_is_looked_at_as_late_as_its_end() -> None:
    """A second chunk is put behind the first without a walk over it: evicted, it leaves the first as young as it was itself."""
    cache = RadixCache(100, 1)
    two_chunks, between = (Sequence(number, 21, 4, 0.0, content=prompt_content(number, 21)) for number in range(2))
    for sequence in (two_chunks, between):
        cache.adopt(sequence, cache.found_tokens(sequence))
        chunk(cache, sequence, 10)
    chunk(cache, two_chunks, 10)
    cache.release(two_chunks)
    cache.make_room(cache.unused + 1)
    assert (cache.unused, cache.idle) == (90 - 10, 10), "the second chunk is gone, the first is not"
    cache.release(between)
    cache.make_room(cache.unused + 1)
    assert (cache.found_tokens(two_chunks), cache.found_tokens(between)) == (10, 0)


def test_a_chunk_costs_the_same_wherever_it_lies_in_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 chunks of one token: an edge each, and none is walked over for those behind it."""
    compared = []
    common = radix_cache.common
    monkeypatch.setattr(radix_cache, "common", lambda one, other: compared.append(1) or common(one, other))
    cache = RadixCache(3000, 1)
    sequence = Sequence(0, 2000, 4, 0.0, content=prompt_content(0, 2000))
    cache.adopt(sequence, cache.found_tokens(sequence))
    for _ in range(1999):
        chunk(cache, sequence, 1)
    assert cache.root.children
    assert len(compared) == 1999


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.none() | st.integers(0, 1), st.integers(1, 40), st.booleans()), max_size=20),
    st.sampled_from([1, 4]),
)
def test_sg6_nothing_is_lost_and_what_is_tried_out_is_taken_back(work, page) -> None:
    total = 200 // page
    cache = RadixCache(total, page)
    running: list[Sequence] = []
    for number, (isl, group, prefix, leaves) in enumerate(work):
        while running and (leaves or cache.free * page < isl + page):
            end(cache, running.pop(0))
            leaves = False
        before = picture(cache)
        cache.rehearse(StepPlan())
        computed(cache, number, isl, group, prefix)
        cache.make_room(total // 2)
        cache.undo()
        assert picture(cache) == before
        running.append(computed(cache, number, isl, group, prefix))
        own = sum(one.blocks - one.kept // page for one in running)
        assert cache.unused + cache.idle + own + cache.locked_tokens() // page == total, "SG-6"
    for one in running:
        end(cache, one)
    assert cache.free == total
    cache.forget_idle()
    assert cache.unused == total
    assert not cache.root.children


def picture(cache: RadixCache) -> tuple:
    def of(node) -> tuple:
        return (
            node.content,
            node.n,
            node.locks,
            node.looked_at,
            sorted((edge, of(child)) for edge, child in node.children.items()),
        )

    return of(cache.root), cache.free, cache.idle, len(cache._leaves)
