"""The order of an agenda whose times change more often than it is read.

White box: the agenda alone.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.batcher.gathering.turns import Agenda


def test_the_earliest_is_first_and_stays_until_it_is_dropped() -> None:
    times = {"a": 2.0, "b": 1.0}
    agenda: Agenda[str] = Agenda(times.get)
    for name, time in times.items():
        agenda.note(name, time)
    assert agenda.first() == agenda.first() == (1.0, "b")
    agenda.drop("b")
    assert agenda.first() == (2.0, "a")
    agenda.drop("a")
    assert agenda.first() is None


def test_of_equal_times_the_one_that_was_noted_first_is() -> None:
    agenda: Agenda[str] = Agenda(lambda _: 1.0)
    for name in "xyab":
        agenda.note(name, 1.0)
    assert agenda.first() == (1.0, "x")


def test_a_time_that_has_moved_later_is_found_when_it_comes_to_the_front() -> None:
    times = {"a": 1.0, "b": 2.0}
    agenda: Agenda[str] = Agenda(times.get)
    agenda.note("a", 1.0)
    agenda.note("b", 2.0)
    times["a"] = 3.0
    assert agenda.first() == (2.0, "b")
    del times["b"]
    assert agenda.first() == (3.0, "a")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_it_agrees_with_looking_at_everybody(seed: int) -> None:
    dice = random.Random(seed)
    times: dict[int, float] = {}
    agenda: Agenda[int] = Agenda(times.get)
    for _ in range(300):
        who = dice.randrange(8)
        if dice.random() < 0.5:
            earlier = who not in times
            times[who] = time = (
                dice.randrange(50) if earlier else times[who] + dice.randrange(-5, 20)
            )
            agenda.note(who, time)  # reporting a later time is optional
        elif dice.random() < 0.5:
            times.pop(who, None)
        else:
            first = agenda.first()
            assert (None if first is None else first[0]) == min(times.values(), default=None)
            assert first is None or times[first[1]] == first[0]


def test_stale_entries_do_not_add_up() -> None:
    """A removed entry stays for a while, but there are never more of these than of others."""
    agenda: Agenda[int] = Agenda(lambda _: 1_000.0)
    for who in range(10_000):
        agenda.note(who, 1_000.0)
        agenda.drop(who)
    assert len(agenda) < 100
