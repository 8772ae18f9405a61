"""Random workloads, and what the tests of the schedulers' laws have in common."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from checked_engine import Arrival, Story
from hypothesis import settings
from hypothesis import strategies as st

from longbench_sched.sim.engine import Engine
from longbench_sched.sim.step import Chunk, StepPlan
from longbench_sched.sim.step import Sequence as Request

arrivals = st.lists(
    st.builds(
        Arrival,
        at_s=st.floats(0, 0.2),
        isl=st.integers(1, 200),
        osl=st.integers(1, 24),
        stop_at=st.none() | st.integers(1, 30),
        to_length=st.booleans(),
        priority=st.integers(0, 2),
        group=st.none() | st.integers(0, 1),
        prefix=st.integers(1, 200),
    ),
    min_size=1,
    max_size=12,
)
kv_tokens = st.integers(240, 900)  # one request always fits, a few do not
quick = settings(max_examples=120)


def with_acceptance(engine: Engine) -> Engine:
    """As many drafts hold as a rule without meaning says, from none to all."""
    engine.accepted = lambda sequence, k: (7 * sequence.id + 3 * sequence.generated) % (k + 1)
    return engine


def decoding(state) -> set[int]:
    """The running requests to which only their next token is missing."""
    return {request.id for request in state.running if request.generated and request.left_to_compute == 1}


def planned(plan: StepPlan) -> set[int]:
    return {entry.sequence.id for entry in plan.entries()}


def gaps_in_steps(story: Story) -> dict[int, list[int]]:
    """Steps from each token of a request to its next one, of the requests that were never preempted."""
    step_at = {end_s: i for i, end_s in enumerate(story.ends_s)}
    return {
        request: [step_at[later] - step_at[sooner] for sooner, later in pairwise(times) if later > sooner]
        for request, times in story.tokens_at.items()
        if request not in story.preempted
    }


def full_step_s(engine: Engine, plan: StepPlan, budget: int) -> float:
    """What the step would take if all of the budget that it leaves were spent on another prompt."""
    left = budget - plan.n_tokens
    other = Chunk(Request(-1, left + 1, 1, 0.0), left, 0)
    return engine.cost(replace(plan, chunks=[*plan.chunks, other]) if left > 0 else plan)
