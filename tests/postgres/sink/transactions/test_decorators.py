"""Decorators around a transaction: the same ones with the same state, and dead letters that wait
for the commit.

White box: decorators of the tests, opened as a batcher does it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
import tenacity
from tests.postgres.sink.transactions.postgres_transaction_help import UNIT

from sluicegate import (
    CircuitBreaker,
    DeadLetter,
    Observer,
    Outcome,
    PermanentError,
    Retry,
    RowBatch,
    Timeout,
    TransientError,
    WriteResult,
    send,
    stack,
    transaction,
)
from sluicegate._core.decorator import WrappingSink
from sluicegate._core.opening import opened
from sluicegate._core.sink import capabilities_of
from sluicegate.errors import TransactionLost
from sluicegate.retry import CircuitState
from sluicegate.sinks import (
    Combine,
    DeadLetterRecord,
    Isolate,
    MemorySink,
    RateLimit,
    Split,
    Unit,
    check_transactional,
)
from sluicegate.telemetry import Metrics, Observed, Tracing
from sluicegate.testing import ScriptedSink, fail, hang, ok

if TYPE_CHECKING:
    from sluicegate import Batch, Sink
    from sluicegate.sinks import Decorator
    from sluicegate.testing import FakeClock

FIXED = tenacity.wait_fixed(1.0)


class Scripted(WrappingSink[Any]):
    """A destination with transactions and a script for each item: its errors before it is
    accepted.
    """

    def __init__(self, script: dict[str, list[Exception]]) -> None:
        super().__init__(MemorySink[Any]())
        self.script = script
        self.tries: list[str] = []

    async def write(self, batch: Batch[Any]) -> WriteResult:
        self.tries.append("".join(batch))
        errors: dict[int, BaseException] = {
            i: self.script[item].pop(0) for i, item in enumerate(batch) if self.script.get(item)
        }
        found = await send(
            self.inner, batch.pick([index for index in range(len(batch)) if index not in errors])
        )
        assert found == {}
        return WriteResult.failed(batch, errors)

    @property
    def stored(self) -> list[Any]:
        assert isinstance(self.inner, MemorySink)
        return self.inner.items

    @property
    def letters_held(self) -> int:
        assert isinstance(self.inner, MemorySink)
        return self.inner.ledger[UNIT].letters_held


def scripted(**script: list[Exception]) -> Scripted:
    return Scripted(script)


def test_a_full_stack_can_stand_around_a_transaction() -> None:
    """P-T21: any decorator of one sink; outcomes are passed through."""
    parts: list[Decorator[Any]] = [
        Isolate(), Split(10), Timeout(5.0), RateLimit(items_per_second=5.0), CircuitBreaker(), Retry(), DeadLetter(MemorySink[Any]()),
        Metrics("around a transaction"), Tracing(), Observed(Observer()),
    ]  # fmt: skip
    sink = stack(Combine(MemorySink[Any](), key=str, merge=max), *parts)
    check_transactional(sink)
    assert capabilities_of(sink).transactional


async def test_every_decorator_does_inside_what_it_does_outside(fake_clock: FakeClock) -> None:
    """P-T21"""
    inner = scripted(b=[TransientError("1")], c=[PermanentError("no")])
    letters = MemorySink[Any]()
    sink = stack(
        Combine(inner, key=str, merge=lambda one, _: one),
        Split(2),
        Timeout(5.0),
        Retry(backoff=FIXED),
        DeadLetter(letters),
    )
    batch = RowBatch("aabcd")
    async with opened(sink):
        async with transaction(sink, UNIT) as tx:
            assert await send(tx, batch) == {}
        assert inner.tries == ["a", "bc", "d", "b"]
        assert sorted(inner.stored) == ["a", "b", "d"]
        assert batch.delivery.verdicts(range(5)) == {Outcome.DELIVERED: 4, Outcome.DEAD_LETTERED: 1}
        assert [record.item for record in letters.items] == ["c"]


async def test_a_lost_transaction_is_not_tried_again_inside(fake_clock: FakeClock) -> None:
    """P-T16: only a new transaction can be retried, and no dead letter is written."""
    inner, letters = scripted(a=[TransactionLost("gone")]), MemorySink[Any]()
    async with (
        opened(sink := stack(inner, Retry(backoff=FIXED), DeadLetter(letters))),
        transaction(sink, UNIT) as tx,
    ):
        errors = await send(tx, RowBatch("a"))
        assert {type(error) for error in errors.values()} == {TransactionLost}
    assert inner.tries == ["a"]
    assert letters.items == []


async def test_state_is_shared_with_the_outside_and_from_one_transaction_to_the_next(
    fake_clock: FakeClock,
) -> None:
    """One rate for all writes, and one circuit that lost transactions open."""
    limited = stack(MemorySink[str](), RateLimit(items_per_second=1.0, burst=2.0))
    async with opened(limited):
        for version in range(4):
            async with transaction(limited, Unit(application="paced", version=version)) as tx:
                assert await send(tx, RowBatch("a")) == {}
        assert fake_clock.now() == pytest.approx(2.0)
    breaking = CircuitBreaker(consecutive=2, when_open="raise")(
        scripted(a=[TransactionLost("gone"), TransactionLost("gone")])
    )
    async with opened(breaking):
        for version in range(2):
            async with transaction(breaking, Unit(application="breaking", version=version)) as tx:
                assert len(await send(tx, RowBatch("a"))) == 1
        assert breaking.state is CircuitState.OPEN


# -- dead letters ----------------------------------------------------------------------------------


def burying(target: Sink[Any], **options: Any) -> tuple[Scripted, Sink[Any]]:
    inner = scripted(
        b=[PermanentError("bad b"), PermanentError("bad b")],
        d=[PermanentError("bad d"), PermanentError("bad d")],
    )
    return inner, stack(inner, DeadLetter(target, **options))


async def test_dead_letters_come_after_the_commit(fake_clock: FakeClock) -> None:
    """P-T21: they are recorded in the ledger."""
    letters = MemorySink[DeadLetterRecord[str]]()
    inner, sink = burying(letters)
    async with opened(sink):
        batch = RowBatch("abc")
        async with transaction(sink, UNIT) as tx:
            assert await send(tx, batch) == {}
            assert await send(tx, RowBatch("de")) == {}
            assert batch.delivery.verdicts(range(3)) == {
                Outcome.DELIVERED: 2,
                Outcome.DEAD_LETTERED: 1,
            }
            assert letters.items == []
    assert [(letter.item, letter.message) for letter in letters.items] == [
        ("b", "bad b"),
        ("d", "bad d"),
    ]
    assert inner.stored == ["a", "c", "e"]
    assert tx.committed is not None
    assert tx.committed.letters_held == inner.letters_held == 0
    assert len({key for written in letters.batches for key in written.item_keys()}) == 2


async def test_a_rolled_back_attempt_leaves_no_dead_letter(fake_clock: FakeClock) -> None:
    """P-T21: the next attempt writes each once."""
    letters = MemorySink[DeadLetterRecord[str]]()
    inner, sink = burying(letters)
    async with opened(sink):
        with pytest.raises(LookupError):
            async with transaction(sink, UNIT) as tx:
                assert await send(tx, RowBatch("abc")) == {}
                raise LookupError
        assert letters.items == []
        for _ in range(2):
            async with transaction(sink, UNIT) as tx:
                assert await send(tx, RowBatch("abc")) == {}
    assert [letter.item for letter in letters.items] == ["b"]
    assert inner.stored == ["a", "c"]


async def test_dead_letters_that_are_not_taken_after_the_commit_are_never_forgotten(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """P-T21: the attempt reports them, the ledger keeps them, and every later attempt reports them
    again.
    """
    target: ScriptedSink[Any] = ScriptedSink([fail(PermanentError("full")), ok()])
    inner, sink = burying(target)
    async with opened(sink):
        async with transaction(sink, UNIT) as tx:
            assert await send(tx, RowBatch("abc")) == {}
            assert await send(tx, RowBatch("de")) == {}
        assert tx.committed is not None
        assert tx.committed.letters_held == inner.letters_held == 1
        assert "did not accept them after the commit" in caplog.text
        assert f"1 dead letters of unit {UNIT.name} were not written" in caplog.text
        caplog.clear()
        async with transaction(sink, UNIT) as again:
            assert again.committed is not None
            assert again.committed.letters_held == 1
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "1 of its dead letters were perhaps never written" in caplog.text


async def test_a_cut_between_the_commit_and_the_dead_letters_is_seen(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    target: ScriptedSink[Any] = ScriptedSink([hang()])
    inner, sink = burying(target)

    async def attempt() -> None:
        async with transaction(sink, UNIT) as tx:
            await send(tx, RowBatch("ab"))

    async with opened(sink):
        task = asyncio.create_task(attempt())
        await target.wait_for_call()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert inner.stored == ["a"]
    assert inner.letters_held == 1
    assert "1 dead letters of unit" in caplog.text


async def test_a_record_that_cannot_be_made_leaves_its_item_failed(fake_clock: FakeClock) -> None:
    letters = MemorySink[Any]()
    _, sink = burying(letters, record=lambda record: {"b": 1}[record.item])
    async with opened(sink):
        async with transaction(sink) as tx:
            assert list(await send(tx, RowBatch("abd"))) == [2]
    assert letters.items == [1]


async def test_the_error_share_is_judged_over_transactions(fake_clock: FakeClock) -> None:
    inner = scripted(b=[PermanentError("bad")] * 3)
    async with opened(sink := stack(inner, DeadLetter(MemorySink[Any](), max_consecutive=2))):
        async with transaction(sink, Unit(application="judged", version=1)) as tx:
            assert await send(tx, RowBatch("b")) == {}
        async with transaction(sink, Unit(application="judged", version=2)) as tx:
            assert "2 items in a row" in str((await send(tx, RowBatch("b")))[0])
