"""Batches, deliveries and `send`: which items are settled, what a verdict contains, which items are
sent again.

White box: the order of outcomes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import (
    Batch,
    Outcome,
    PermanentError,
    RowBatch,
    TransientError,
    UnknownOutcomeError,
    WriteResult,
    send,
)
from sluicegate._core.outcome import worst
from sluicegate.errors import ResultMismatch
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


def as_dead(outcome: Outcome) -> Outcome:
    return Outcome.DEAD_LETTERED if outcome.is_safe else Outcome.REJECTED


def verdicts(batch: Batch[Any]) -> list[str]:
    return [batch.delivery.verdict(index).value for index in range(len(batch))]


async def test_success_is_settled_before_send_returns_and_failure_is_returned(
    fake_clock: FakeClock,
) -> None:
    """design 3.2."""
    batch = RowBatch("abc")

    class Half:
        async def write(self, batch: Batch[str]) -> WriteResult:
            return WriteResult.failed(batch, {1: PermanentError("b")})

    errors = await send(Half(), batch)
    assert list(errors) == [1]
    assert list(batch.unsettled()) == [1]
    assert verdicts(batch) == ["delivered", "rejected", "delivered"]


async def test_what_is_settled_is_not_sent_again(fake_clock: FakeClock) -> None:
    """B-T41: `send` narrows the batch, whatever a decorator passes on; indices stay the
    caller's.
    """
    sink: MemorySink[str] = MemorySink()
    batch = RowBatch("abcd")
    batch.settle([0, 2], Outcome.DELIVERED)
    assert await send(sink, batch) == {}
    assert sink.items == ["b", "d"]
    assert await send(sink, batch) == {}
    assert len(sink.batches) == 1

    async def fails(batch: Batch[str]) -> None:
        raise TransientError("t")

    other = RowBatch("abcd")
    other.settle([0, 2], Outcome.DELIVERED)

    class Fails:
        write = staticmethod(fails)

    assert list(await send(Fails(), other)) == [1, 3]


async def test_an_empty_batch_is_not_written(fake_clock: FakeClock) -> None:
    """batcher/B19."""
    sink: MemorySink[int] = MemorySink()
    assert await send(sink, RowBatch([])) == {}
    assert sink.batches == []


async def test_a_cancelled_write_may_have_been_applied(fake_clock: FakeClock) -> None:
    """design 3.3: the mark is visible outside, and outlasts later failures."""

    class Hangs:
        async def write(self, batch: Batch[str]) -> None:
            batch.settle([0], Outcome.DELIVERED)
            await asyncio.sleep(100)

    batch = RowBatch("abc")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await send(Hangs(), batch.pick([0, 2]))
    assert verdicts(batch) == ["delivered", "unsent", "unknown"]
    assert batch.maybe_applied == {2}
    assert batch.pick([2]).maybe_applied == {0}
    batch.delivery.failed({2: TransientError("later")})
    assert batch.delivery.verdict(2) is Outcome.UNKNOWN


async def test_a_cancellation_from_inside_a_sink_is_not_ours(fake_clock: FakeClock) -> None:
    """For example a client library whose own task was cancelled: the write itself was not
    cancelled, and its outcome is unknown.
    """

    class Odd:
        async def write(self, batch: Batch[str]) -> None:
            raise asyncio.CancelledError

    errors = await send(Odd(), RowBatch("a"))
    assert isinstance(errors[0], UnknownOutcomeError)


async def test_a_sink_whose_write_is_not_async_is_told_so(fake_clock: FakeClock) -> None:
    """A common mistake."""

    class Plain:
        def write(self, batch: Batch[str]) -> None: ...

    errors = await send(Plain(), RowBatch("a"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the point
    assert "make it `async def write" in str(errors[0])


async def test_after_a_cut_nothing_is_sent_and_late_answers_are_only_remembered(
    fake_clock: FakeClock,
) -> None:
    """design 3.3: a closed delivery raises `CancelledError`, for sends and for backoffs."""
    sink: MemorySink[str] = MemorySink()
    batch = RowBatch("ab")
    batch.delivery.close()
    with pytest.raises(asyncio.CancelledError):
        await send(
            sink, RowBatch("ab", delivery=batch.delivery).pick([0])
        ) if batch.unsettled() else await _begin(batch)
    with pytest.raises(asyncio.CancelledError):
        await batch.back_off(10.0)
    batch.settle([0, 1], Outcome.DELIVERED)
    assert verdicts(batch) == ["unsent", "unsent"]
    assert batch.delivery.late == 2
    assert sink.batches == []


async def _begin(batch: Batch[str]) -> None:
    batch.delivery.begin(range(len(batch)))


def test_only_contradictions_among_later_answers_are_counted() -> None:
    """design 3.3."""
    batch = RowBatch("ab")
    batch.settle([0], Outcome.DELIVERED)
    batch.settle([0, 1], Outcome.DELIVERED)
    assert batch.delivery.states.contradictions == 0
    batch.settle([0], Outcome.DUPLICATE)
    assert batch.delivery.states.contradictions == 1
    assert verdicts(batch) == ["delivered", "delivered"]


def test_failures_cannot_be_settled() -> None:
    """Failures are raised or returned."""
    with pytest.raises(ResultMismatch, match="only safe outcomes are settled"):
        RowBatch("a").settle([0], Outcome.REJECTED)


@given(st.data())
def test_picks_and_derived_batches_book_by_origin(data: st.DataObject) -> None:
    """Along any path of picks, with groups that partition; only the same items have equal write
    keys.
    """
    size = data.draw(st.integers(1, 12))
    batch: Batch[int] = RowBatch(range(size))
    for _ in range(data.draw(st.integers(0, 3))):
        chosen = data.draw(st.lists(st.integers(0, len(batch) - 1), unique=True, min_size=1))
        picked = batch.pick(chosen)
        assert [*picked] == [batch[i] for i in chosen]
        assert (picked.write_key == batch.write_key) == (chosen == list(range(len(batch))))
        batch = picked
    marks = data.draw(st.lists(st.integers(0, 3), min_size=len(batch), max_size=len(batch)))
    groups = [
        [i for i, mark in enumerate(marks) if mark == wanted] for wanted in sorted(set(marks))
    ]
    merged = batch.derive([sum(batch[i] for i in group) for group in groups], groups)
    merged.settle([0], Outcome.DELIVERED)
    assert sorted(batch[i] for i in batch.unsettled()) == sorted(
        batch[i] for group in groups[1:] for i in group
    )
    assert list(merged.unsettled()) == list(range(1, len(groups)))


def test_groups_must_partition() -> None:
    """Every index in exactly one group."""
    for groups in ([[0], [0, 1]], [[0]], [[0, 1], [2]]):
        with pytest.raises(ValueError, match="partition"):
            RowBatch("ab").derive("xy"[: len(groups)], groups)


async def test_a_dead_letter_is_mapped_not_booked_as_delivered(fake_clock: FakeClock) -> None:
    """design 3.3: a success there is `dead_lettered`, a failure or a cut is `rejected`, and the
    path has its own key.
    """
    sink: MemorySink[str] = MemorySink()
    batch = RowBatch("abc")
    batch.delivery.begin(range(3))
    batch.delivery.failed({0: PermanentError("a"), 1: PermanentError("b")})
    with batch.pick([0]).child("letters", as_dead) as ways:
        assert await send(sink, ways["letters"]) == {}
        assert ways["letters"].write_key != batch.pick([0]).write_key
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            with batch.pick([1]).child("letters", as_dead) as ways:
                ways["letters"].delivery.begin([1])
                await asyncio.sleep(9)
    assert verdicts(batch) == ["dead_lettered", "rejected", "unknown"]


async def test_a_fork_settles_when_every_required_branch_has(fake_clock: FakeClock) -> None:
    """The basis of B-T53: the worst branch decides; best-effort branches never do."""
    batch = RowBatch("abcd")

    def as_it_is(outcome: Outcome) -> Outcome:
        return outcome

    with batch.fork(
        {"one": as_it_is, "two": as_it_is, "extra": as_it_is}, best_effort=["extra"]
    ) as ways:
        ways["one"].settle([0, 1], Outcome.DELIVERED)
        assert list(batch.unsettled()) == [0, 1, 2, 3]
        ways["two"].settle([0], Outcome.DUPLICATE)
        ways["extra"].delivery.begin([0, 1, 2, 3])
        assert list(batch.unsettled()) == [1, 2, 3]
        ways["two"].delivery.begin([1, 2])
        ways["two"].delivery.failed({1: PermanentError("x")})
    assert verdicts(batch) == ["delivered", "rejected", "unknown", "unsent"]


def test_the_worst_of_several_ways() -> None:
    """`unsent` guarantees that nothing was applied anywhere."""
    assert worst([Outcome.DELIVERED, Outcome.UNSENT]) is Outcome.UNKNOWN
    assert worst([Outcome.DELIVERED, Outcome.REJECTED]) is Outcome.REJECTED
    assert worst([Outcome.UNSENT, Outcome.UNSENT]) is Outcome.UNSENT
    assert worst([Outcome.DELIVERED, Outcome.DUPLICATE]) is Outcome.DELIVERED
    assert worst([Outcome.REJECTED, Outcome.UNKNOWN]) is Outcome.UNKNOWN


def test_answers_by_position_have_a_checked_length() -> None:
    """B-T44."""
    batch = RowBatch("abc")
    with pytest.raises(ResultMismatch, match="2 answers for a batch of 3"):
        WriteResult.from_outcomes(batch, [None, None])
    with pytest.raises(ResultMismatch, match="answer 1 is 5"):
        WriteResult.from_outcomes(batch, [None, 5, None])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # the point
    with pytest.raises(ResultMismatch, match=r"errors are given for \[3\]"):
        WriteResult.failed(batch, {3: ValueError()})
