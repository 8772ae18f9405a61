"""The order in which SGLang serves its queue (`--schedule-policy`), decided anew before each batch of prompts.

fcfs                    as it came; whoever was retracted comes back to the end
lof                     the longest output that was asked for first
random                  by lot
lpm                     the longest prefix found in the cache first
dfs-weight              depth first through the tree, at every fork first where more of the queue go on
hrrn                    prompt tokens computed since it came / of its own yet to be computed: the highest first
shortest-prefill-first  the fewest tokens to be computed first; the prompt in progress leaves them room in its chunk
routing-key             those first whose key many of the running have; requests have none here, so: as it came

lpm, dfs-weight and hrrn are fcfs without a cache, lpm and hrrn also for a queue of more than 128. Of several that share 32
tokens not yet cached only one goes before all others are served (lpm, hrrn, shortest-prefill-first): the rest will find them.
With priorities, the more urgent go first under fcfs and lof. A new order stays as the queue's own.
"""

from __future__ import annotations

import math
from random import Random

from longbench_sched.sim.content import Content, common
from longbench_sched.sim.policy.sglang_options import SglangOptions
from longbench_sched.sim.radix_cache import RadixCache
from longbench_sched.sim.state import SchedulerState
from longbench_sched.sim.step import Sequence, StepPlan

MATCH_AT_MOST = 128  # a longer queue is served first come, first served
SHARED_TOKENS = 32  # who finds no more than this waits for an earlier one in the queue with which it shares as much

_BY_PREFIX = frozenset({"lpm", "dfs-weight", "hrrn", "shortest-prefill-first"})
_OF_SHORT_QUEUES = frozenset({"lpm", "hrrn"})


def ordered(state: SchedulerState, plan: StepPlan, options: SglangOptions) -> list[Sequence]:
    """The queue as it is to be served. What was looked up for it, and a new order, are noted in the plan."""
    queue, policy = list(state.waiting), options.schedule_policy
    if policy in _BY_PREFIX:
        if not state.kv.is_caching or (policy in _OF_SHORT_QUEUES and len(queue) > MATCH_AT_MOST):
            return queue
        queue = _by_prefix(queue, state, plan, policy)
    elif policy == "lof":
        queue.sort(key=lambda sequence: (urgency(sequence, options), -sequence.max_new))
    elif policy == "random":
        Random(f"{options.random_seed}/{state.n_planned}/{queue[0].id if queue else 0}").shuffle(queue)
    elif options.enable_priority_scheduling:
        queue.sort(key=lambda sequence: urgency(sequence, options))
    else:
        return queue
    plan.queue = queue
    return queue


def urgency(sequence: Sequence, options: SglangOptions) -> int:
    """Its priority with the sign that puts the most urgent first; 0 without priorities."""
    if not options.enable_priority_scheduling:
        return 0
    return sequence.priority if options.schedule_low_priority_values_first else -sequence.priority


def to_compute(sequence: Sequence) -> int:
    """Tokens of a waiting sequence that its last lookup left to be computed; at least the last one."""
    return sequence.length - min(sequence.cached, sequence.length - 1)


def _by_prefix(queue: list[Sequence], state: SchedulerState, plan: StepPlan, policy: str) -> list[Sequence]:
    behind = _look_up(queue, state, plan)
    if policy == "dfs-weight":
        assert isinstance(state.kv, RadixCache)
        return state.kv.depth_first(queue)
    if policy == "lpm":
        return sorted(queue, key=lambda one: math.inf if one in behind else -min(one.cached, one.length - 1))
    if policy == "hrrn":
        return sorted(queue, key=lambda one: (math.inf if one in behind else -_response(one, state), one.id))
    return sorted(queue, key=lambda one: (one in behind, to_compute(one), one.queued_after, one.id))


def _look_up(queue: list[Sequence], state: SchedulerState, plan: StepPlan) -> set[Sequence]:
    """Find the prefix of everyone; who is to wait until an earlier one has filled the cache for it."""
    behind: set[Sequence] = set()
    seen: list[Content] = []
    for sequence in queue:
        plan.lookups.append((sequence, sequence.length))
        if state.kv.look_up(sequence, sequence.length) <= SHARED_TOKENS:
            content = sequence.content_so_far()
            if any(common(other, content) >= SHARED_TOKENS for other in seen):
                behind.add(sequence)
            else:
                seen.append(content)
    return behind


def _response(sequence: Sequence, state: SchedulerState) -> float:
    """The response ratio, less 1: prompt tokens computed while it waited over those that it needs."""
    needed = sequence.isl - min(sequence.cached, sequence.length - 1)
    return (state.prefilled_tokens - sequence.queued_after) / needed if needed > 0 else math.inf


def room_left_for_shorter(chunked: Sequence, queue: list[Sequence], chunk_tokens: int, page: int) -> int | None:
    """The most that the prompt in progress may take of a chunk so that shorter ones of the queue fit into the same batch.

    The queue is in the order of shortest-prefill-first. None: all it can.
    """
    if chunk_tokens < 2 * page:
        return None
    reserved = 0
    for sequence in queue:
        n = to_compute(sequence)
        paged = -(-n // page) * page
        if n >= chunked.left_to_compute or reserved + paged > chunk_tokens - page:
            break
        reserved += paged
    return (chunk_tokens - reserved) // page * page if reserved else None
