"""Engines side by side: each does what it would do alone with its own requests."""

from __future__ import annotations

import pytest
from checked_engine import H200, QWEN, sglang, vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from longbench_sched.sim.engine import build_engine
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.replay import Arrival, replay
from longbench_sched.sim.side_by_side import SideBySide

load = st.lists(
    st.builds(Arrival, at_s=st.floats(0, 0.5), isl=st.integers(1, 20_000), osl=st.integers(1, 12)), min_size=1, max_size=10
).map(lambda arrivals: sorted(arrivals, key=lambda one: one.at_s))


class Noted(SideBySide):
    """Remembers to which engine each request went."""

    def submit(self, *args, **kwargs):
        before = [engine.counters.n_arrived for engine in self.engines]
        sequence = super().submit(*args, **kwargs)
        place = next(i for i, engine in enumerate(self.engines) if engine.counters.n_arrived > before[i])
        self.went = [*getattr(self, "went", []), place]
        return sequence


@settings(max_examples=40)
@given(arrivals=load, name=st.sampled_from(["vllm", "sglang", "stages"]))
def test_each_engine_serves_its_own_as_it_would_alone(arrivals: list[Arrival], name: str) -> None:
    def make():
        if name == "stages":
            return build_engine("sglang", H200, QWEN, read_flags("sglang", ("-pp=2",)))
        return vllm() if name == "vllm" else sglang()

    together = Noted([make(), make(), make()])
    served = replay(together, arrivals)
    for i in range(3):
        own = [place for place, engine in enumerate(together.went) if engine == i]
        for place, alone in zip(own, replay(make(), [arrivals[place] for place in own]), strict=True):
            assert served[place].token_at_s == pytest.approx(alone.token_at_s)
    assert together.counters.n_arrived == len(arrivals)
    assert (together.n_waiting, together.n_running, len(together._owner)) == (0, 0, 0)


def test_a_request_goes_to_the_engine_with_the_fewest() -> None:
    """Four at once over three engines: the first has two, and each of the others is as fast as one alone."""
    together = SideBySide([vllm(), vllm(), vllm()])
    served = replay(together, [Arrival(0.0, 8000, 20) for _ in range(4)])
    assert [engine.counters.n_arrived for engine in together.engines] == [2, 1, 1]
    (alone,) = replay(vllm(), [Arrival(0.0, 8000, 20)])
    pair = replay(vllm(), [Arrival(0.0, 8000, 20) for _ in range(2)])
    assert served[1].token_at_s == served[2].token_at_s == pytest.approx(alone.token_at_s)
    assert served[0].token_at_s == pytest.approx(pair[0].token_at_s)
    assert served[3].token_at_s == pytest.approx(pair[1].token_at_s)


def test_whoever_leaves_leaves_its_engine() -> None:
    together = SideBySide([vllm(), vllm()])
    first, second = together.submit(9000, 50, 0.0), together.submit(100, 2, 0.0)
    step_s = together.begin(0.0)
    assert step_s is not None
    together.end(step_s)
    together.abort(first)
    now_s = step_s
    while (step_s := together.begin(now_s)) is not None:
        now_s += step_s
        together.end(now_s)
    assert (first.finish, second.finish) == ("abort", "length")
    assert all(engine.state.kv.free == engine.state.kv.total for engine in together.engines)
