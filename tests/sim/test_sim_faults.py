"""Faults on purpose: which requests they hit, what is written when (in virtual time), and what our client makes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from longbench_sched.cli.app import main
from longbench_sched.errors import UsageError
from longbench_sched.launch.process import EmbeddedOptions, EmbeddedServer
from longbench_sched.sim.clock import EPOCH_NS, VirtualClock, VirtualLoop, run_virtually
from longbench_sched.sim.faults import BROKEN_FRAMING, GARBAGE, Fault, FaultPlan, FaultyWire, read_fault
from longbench_sched.store.catalogue import find_run, read_stored

MS = 1_000_000


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("cut", Fault("cut", every=1)),
        ("cut:every=10,after=5", Fault("cut", every=10, after=5)),
        ("stall:p=0.1,for=250ms", Fault("stall", probability=0.1, for_s=0.25)),
        ("stall", Fault("stall", every=1, for_s=30.0)),
        ("slow", Fault("slow", every=1, for_s=0.2)),
        ("5xx:every=4,status=500", Fault("5xx", every=4, status=500)),
        ("malformed:what=framing", Fault("malformed", every=1, what="framing")),
    ],
)
def test_a_fault_is_read(text: str, fault: Fault) -> None:
    assert read_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("crash", "no fault named 'crash'. Known: stall, cut, 5xx, slow, malformed"),
        ("cut:for=3s", "'for=3s' is no setting of cut. Known: every, p, after"),
        ("cut:after", "no setting"),
        ("cut:every=2,p=0.1", "Give one of them"),
        ("cut:p=2", "no probability"),
        ("cut:p=x", "no probability"),
        ("cut:every=0", "hits nothing"),
        ("cut:every=x", "not a whole number"),
        ("5xx:status=404", "no server error"),
        ("malformed:what=html", "Give json or framing"),
        ("stall:for=long", "not a duration"),
    ],
)
def test_what_is_no_fault_is_wrong_usage(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--fault") as caught:
        read_fault(text)
    assert said in str(caught.value)


def test_every_nth_request_is_hit_and_the_first_fault_given_wins() -> None:
    plan = FaultPlan((Fault("cut", every=2), Fault("5xx", every=3)))
    kinds = [fault.kind if fault else None for fault in (plan.next() for _ in range(6))]
    assert kinds == [None, "cut", "5xx", "cut", None, "cut"]
    assert (plan.n_requests, plan.n_hit) == (6, 4)


def test_a_probability_is_decided_by_number_and_seed_alone() -> None:
    fault = Fault("cut", probability=0.25)
    hits = [[fault.hits(number, seed) for number in range(1, 2001)] for seed in (0, 0, 1)]
    assert hits[0] == hits[1] != hits[2]
    assert 420 < sum(hits[0]) < 580  # 4 sigma of a binomial around 500
    assert not any(Fault("cut", probability=0.0).hits(number, 0) for number in range(1, 100))


class Recorded:
    """A wire that notes what is done to it, and when, in ms."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.done: list[tuple[float, bytes | str]] = []

    def _note(self, what: bytes | str) -> None:
        self.done.append(((self.loop.now_ns - EPOCH_NS) / MS, what))

    def write(self, data: bytes) -> None:
        self._note(data)

    def answered(self) -> None:
        self._note("answered")

    def cut(self) -> None:
        self._note("cut")


def answer(fault: Fault) -> list[tuple[float, bytes | str]]:
    """An answer of four tokens, 10 ms apart, over a wire with that fault."""

    async def scenario(loop: VirtualLoop) -> list[tuple[float, bytes | str]]:
        wire = Recorded(loop)
        faulty = FaultyWire(wire, fault, loop)
        for i in range(4):
            faulty.write(b"%d" % i)
            if i < 3:
                await VirtualClock(loop).sleep_until(EPOCH_NS + 10 * MS * (i + 1))
        faulty.answered()
        await asyncio.sleep(60)
        return wire.done

    return run_virtually(scenario)


@pytest.mark.parametrize(
    ("fault", "done"),
    [
        pytest.param(
            Fault("stall", after=2, for_s=0.1),
            [(0, b"0"), (10, b"1"), (120, b"2"), (120, b"3"), (120, "answered")],
            id="stall: silent for 100 ms from the third token on, then all that was held",
        ),
        pytest.param(
            Fault("slow", for_s=0.025),
            [(25, b"0"), (50, b"1"), (75, b"2"), (100, b"3"), (100, "answered")],
            id="slow: 25 ms between two writes",
        ),
        pytest.param(Fault("cut", after=2), [(0, b"0"), (10, b"1"), (20, "cut")], id="cut: nothing after it"),
        pytest.param(
            Fault("malformed", after=1),
            [(0, b"0"), (10, GARBAGE), (10, b"1"), (20, b"2"), (30, b"3"), (30, "answered")],
            id="malformed: one bad event among the good",
        ),
        pytest.param(
            Fault("malformed", after=0, what="framing"),
            [(0, BROKEN_FRAMING), (0, b"0"), (10, b"1"), (20, b"2"), (30, b"3"), (30, "answered")],
            id="malformed framing",
        ),
    ],
)
def test_an_answer_goes_wrong_as_asked(fault: Fault, done: list[tuple[float, bytes | str]]) -> None:
    assert [(round(at, 6), what) for at, what in answer(fault)] == done


WORKLOAD = 'title = "Tiny"\nisl = 32\nosl = 6\nconcurrency = 1\nrequests = 6\nwarmups = 0\n'


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_client_tells_each_fault_from_the_others(engine: str, tmp_path: Path) -> None:
    """Six requests one after the other: 1 and 5 unharmed, 2, 4 and 6 cut after two tokens, 3 refused."""
    (tmp_path / "tiny.toml").write_text(WORKLOAD)
    flags = ("--fault", "cut:every=2,after=2", "--fault", "5xx:every=3,status=503")
    with EmbeddedServer(EmbeddedOptions(engine=engine, time_scale=100, flags=flags)) as server:
        arguments = ["run", str(tmp_path / "tiny.toml"), "--engine", engine, "--base-url", server.base_url, "--no-preflight"]
        code = main([*arguments, "--model", str(server.facts["model"]), "--output-dir", str(tmp_path)])
    assert code == 4
    table = read_stored(find_run("latest", tmp_path)).table
    seen = sorted(zip(table.ints["index"], table.texts["reason"], table.ints["http_status"], strict=True))
    assert [(reason, status) for _, reason, status in seen] == [
        (None, 200), ("cut", 200), ("http-status", 503), ("cut", 200), (None, 200), ("cut", 200),
    ]  # fmt: skip
    lengths = {index: table.offsets[row + 1] - table.offsets[row] for row, index in enumerate(table.ints["index"])}
    assert [lengths[index] for index in range(6)] == [6, 2, 0, 2, 6, 2]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("stall:after=2,for=60s", "timeout-idle"), ("malformed:after=2,what=framing", "malformed")],
)
def test_a_silent_or_broken_stream_is_told_from_a_good_one(fault: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(WORKLOAD.replace("requests = 6", "requests = 1"))
    with EmbeddedServer(EmbeddedOptions(time_scale=100, flags=("--fault", fault))) as server:
        arguments = ["run", str(tmp_path / "tiny.toml"), "--engine", "vllm", "--base-url", server.base_url, "--no-preflight"]
        more = ["--model", str(server.facts["model"]), "--timeout-idle", "500ms", "--output-dir", str(tmp_path)]
        assert main([*arguments, *more]) == 4
    table = read_stored(find_run("latest", tmp_path)).table
    assert list(table.texts["reason"]) == [reason]
    assert table.offsets[1] == 2
