"""The capacity limit of a consumer's window.

White box: the window without a consumer.

Planted faults: a limit in one measure only, `>` for `>=`, no refill level, a resume at either level
instead of both, an oversized record that never fits, and counts that may become negative. The test
of that rule and the model detect each.

White box: the arithmetic of the window.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from sluicegate import ConfigError
from sluicegate.consumer.lanes.window import REFILL, Window


def test_messages_bound_the_room() -> None:
    """consumer/C:B1."""
    window = Window(10, 1_000)
    assert window.room == 10
    window.take(7, 70)
    assert (window.room, window.is_full) == (3, False)
    window.take(3, 30)
    assert (window.room, window.is_full) == (0, True)


def test_bytes_bound_the_room() -> None:
    """consumer/C:B1."""
    window = Window(10, 1_000)
    window.take(1, 999)
    assert (window.room, window.is_full) == (9, False)
    window.take(1, 1)
    assert (window.room, window.is_full) == (0, True)


def test_fetching_resumes_below_the_refill_level_of_both_measures() -> None:
    """consumer/C:B1: at three quarters by default."""
    window = Window(100, 1_000)
    window.take(100, 1_000)
    window.give(25, 300)
    assert (window.room, window.is_full, window.has_resumed) == (25, False, False)
    window.give(1, 0)
    assert window.has_resumed
    window.take(0, 50)
    assert not window.has_resumed
    window.give(0, 1)
    assert window.has_resumed


def test_a_window_of_one_message_resumes_when_it_is_empty() -> None:
    window = Window(1, 1)
    window.take(1, 1)
    assert (window.is_full, window.has_resumed) == (True, False)
    window.give(1, 1)
    assert (window.room, window.has_resumed) == (1, True)


def test_a_record_larger_than_the_window_passes_alone() -> None:
    """consumer/C:B1."""
    window = Window(10, 100)
    assert window.fits(5_000)
    window.take(1, 5_000)
    assert (window.is_full, window.room, window.fits(0)) == (True, 0, False)
    window.give(1, 5_000)
    assert (window.is_full, window.room) == (False, 10)
    window.take(1, 60)
    assert window.fits(40)
    assert not window.fits(41)


def test_no_message_fits_beyond_their_number() -> None:
    window = Window(2, 100)
    window.take(2, 0)
    assert not window.fits(0)


@examples(25, long=200)
@given(
    inside=st.lists(st.integers(0, 30), max_size=4),
    sizes=st.lists(st.integers(0, 30), max_size=8),
    bounds=st.tuples(st.integers(1, 8), st.integers(1, 60)),
)
def test_as_many_fit_together_as_one_after_the_other(
    inside: list[int], sizes: list[int], bounds: tuple[int, int]
) -> None:
    """consumer/C:B1."""
    window, other = Window(*bounds), Window(*bounds)
    for each in (window, other):
        each.take(len(inside), sum(inside))
    count = 0
    for size in sizes:
        if not other.fits(size):
            break
        other.take(1, size)
        count += 1
    assert window.fitting(sizes) == count


@pytest.mark.parametrize(("messages", "size"), [(4, 0), (0, 31), (-1, 0), (0, -1)])
def test_more_than_is_inside_cannot_be_given_back(messages: int, size: int) -> None:
    window = Window(10, 100)
    window.take(3, 30)
    with pytest.raises(ValueError, match=r"give\(.*\) of <Window 3 of 10 messages, 30 of 100"):
        window.give(messages, size)
    assert (window.messages, window.bytes) == (3, 30)


@pytest.mark.parametrize(("messages", "size"), [(-1, 0), (0, -1)])
def test_less_than_nothing_cannot_be_taken(messages: int, size: int) -> None:
    window = Window(10, 100)
    with pytest.raises(ValueError, match=r"take\("):
        window.take(messages, size)
    assert (window.messages, window.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 1), "max_messages"),
        ((1, 0), "max_bytes"),
        ((1.5, 1), "max_messages"),
    ],
)
def test_a_bad_bound_is_refused(arguments: tuple[int, int], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}="):
        Window(*arguments)


@examples(25, long=200)
@given(
    max_messages=st.integers(1, 8),
    max_bytes=st.integers(1, 50),
    moves=st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=60),
)
def test_a_window_agrees_with_a_list_of_records(
    max_messages: int, max_bytes: int, moves: list[tuple[bool, int]]
) -> None:
    """consumer/C:B1: records that fit are accepted, and released records make room."""
    window = Window(max_messages, max_bytes)
    inside: list[int] = []
    for arrives, number in moves:
        if arrives and window.fits(number):
            window.take(1, number)
            inside.append(number)
        elif not arrives and inside:
            window.give(1, inside.pop(number % len(inside)))
        held = sum(inside)
        assert (window.messages, window.bytes) == (len(inside), held)
        assert len(inside) <= max_messages
        assert held <= max_bytes or len(inside) == 1
        full = bool(inside) and (len(inside) >= max_messages or held >= max_bytes)
        assert window.is_full is full
        assert window.room == (0 if full else max_messages - len(inside))
        low = len(inside) < REFILL * max_messages and held < REFILL * max_bytes
        assert window.has_resumed is (low or not inside)
        assert not (full and window.has_resumed)
