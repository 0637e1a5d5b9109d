"""Entries by due time.

White box: the heap without a consumer.

Planted faults: `<` for `<=` in `pop_due`, entries compared with one another, last in first out at
equal times, and a broken heap after a removal. The test of that rule, or the model, detects each.

White box: the heap of due retries.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from sluicegate.consumer.lanes.schedule import RetryHeap


def test_entries_come_when_they_are_due() -> None:
    """An entry is due at its exact time."""
    heap: RetryHeap[str] = RetryHeap()
    heap.push(3.0, "c")
    heap.push(1.0, "a")
    heap.push(2.0, "b")
    assert heap.next_due == 1.0
    assert heap.pop_due(0.9) == []
    assert heap.pop_due(2.0) == ["a", "b"]
    assert (heap.next_due, len(heap)) == (3.0, 1)
    assert heap.pop_due(99.0) == ["c"]
    assert heap.next_due is None
    assert not heap


def test_entries_of_one_time_come_in_the_order_of_arrival() -> None:
    """Entries are not compared, so they can be any objects."""
    heap: RetryHeap[object] = RetryHeap()
    entries = [object() for _ in range(20)]
    for entry in entries:
        heap.push(5.0, entry)
    assert heap.pop_due(5.0) == entries


def test_what_is_removed_is_never_due() -> None:
    """For example the entries of a revoked partition."""
    heap: RetryHeap[int] = RetryHeap()
    for number in (9, 2, 7, 4, 1, 8):
        heap.push(float(number), number)
    assert heap.remove_where(lambda number: number % 2 == 0) == [2, 4, 8]
    assert list(heap) == [(1.0, 1), (7.0, 7), (9.0, 9)]
    assert heap.pop_due(10.0) == [1, 7, 9]


def test_a_predicate_that_raises_removes_nothing() -> None:
    heap: RetryHeap[int] = RetryHeap()
    for number in (1, 0, 2):
        heap.push(1.0, number)
    with pytest.raises(ZeroDivisionError):
        heap.remove_where(lambda number: 1 // number > 0)
    assert heap.pop_due(1.0) == [1, 0, 2]


def test_a_time_that_is_no_number_is_refused() -> None:
    """It would hide the entries behind it."""
    heap: RetryHeap[str] = RetryHeap()
    with pytest.raises(ValueError, match="due=nan: must be a time"):
        heap.push(float("nan"), "never")
    assert len(heap) == 0


@examples(25, long=200)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["push", "push", "pop", "remove"]), st.integers(0, 9)),
        max_size=60,
    )
)
def test_a_heap_agrees_with_a_sorted_list(moves: list[tuple[str, int]]) -> None:
    heap: RetryHeap[tuple[int, int]] = RetryHeap()
    model: list[tuple[int, int]] = []  # (due, number of the move) defines the order
    for number, (move, value) in enumerate(moves):
        if move == "push":
            heap.push(float(value), (value, number))
            model.append((value, number))
        elif move == "pop":
            due = sorted(each for each in model if each[0] <= value)
            assert heap.pop_due(float(value)) == due
            model = [each for each in model if each not in due]
        else:
            gone = sorted(each for each in model if each[1] % 3 == value % 3)
            assert heap.remove_where(lambda each, kind=value % 3: each[1] % 3 == kind) == gone  # type: ignore[misc]  # mypy infers no default
            model = [each for each in model if each not in gone]
        assert len(heap) == len(model)
        assert list(heap) == [(float(each[0]), each) for each in sorted(model)]
        assert heap.next_due == (float(min(model)[0]) if model else None)
