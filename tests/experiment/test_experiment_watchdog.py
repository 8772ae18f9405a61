"""A run in which nothing moves names what it waits for."""

from __future__ import annotations

from longbench_sched.experiment.watchdog import Watchdog


def test_b11_requests_in_flight_are_named_when_nothing_moves() -> None:
    dog = Watchdog(quiet_s=60)
    for i in range(7):
        dog.sent(f"r{i}")
    dog.ended("r0")
    assert dog.look(0.0, 1) is None
    assert dog.look(59.0, 1) is None
    assert dog.look(60.0, 1) == "Nothing was sent or has ended for 60 s. In flight: r1, r2, r3, r4, r5 and 1 more."


def test_the_warning_is_not_given_at_every_look() -> None:
    dog = Watchdog(quiet_s=10)
    dog.sent("r0")
    said = [now for now in range(100) if dog.look(float(now), 1)]
    assert said == [10, 20, 40, 80]


def test_what_moves_is_left_alone() -> None:
    dog = Watchdog(quiet_s=10)
    dog.sent("r0")
    assert [dog.look(float(now), now // 9) for now in range(100)] == [None] * 100


def test_nothing_in_flight_is_no_warning() -> None:
    dog = Watchdog(quiet_s=10)
    assert [dog.look(float(now), 1) for now in (0, 50)] == [None, None]
