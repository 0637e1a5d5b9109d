"""Properties of every transaction, tested with the destination in memory.

White box: what the stack reads from a sink, and a function as a sink.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import (
    Batch,
    ConfigError,
    FanOut,
    Outcome,
    RowBatch,
    Timeout,
    send,
    stack,
    transaction,
)
from sluicegate._core.sink import capabilities_of
from sluicegate._core.stacking import FunctionSink
from sluicegate.errors import NonDeterministicReplay, TransactionLost, UnitRefused
from sluicegate.sinks import Counts, MemorySink, Router, Unit, check_transactional

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

UNIT = Unit(application="orders", version=7, part=1, parts=4, rule="id")


def unit_of(**changed: Any) -> Unit:
    return replace(UNIT, **changed)


async def test_what_is_written_is_there_with_the_commit_and_not_before(
    fake_clock: FakeClock,
) -> None:
    """design 3.2"""
    sink = MemorySink[str]()
    async with transaction(sink, UNIT) as tx:
        assert tx.committed is None
        assert await send(tx, RowBatch(["a"])) == {}
        assert await send(tx, RowBatch(["b"])) == {}
        tx.record(Counts(rows=2, delivered=2))
        assert sink.items == []
    assert sink.items == ["a", "b"]
    assert tx.committed is not None
    assert tx.committed.counts == Counts(rows=2, delivered=2)
    assert list(sink.ledger) == [UNIT]


@pytest.mark.parametrize("unit", [None, UNIT])
async def test_left_by_an_exception_it_leaves_nothing(
    fake_clock: FakeClock, unit: Unit | None
) -> None:
    sink = MemorySink[str]()
    with pytest.raises(LookupError):
        async with transaction(sink, unit) as tx:
            await send(tx, RowBatch(["a"]))
            raise LookupError
    assert sink.items == []
    assert sink.ledger == {}
    async with transaction(sink, unit) as tx:
        await send(tx, RowBatch(["a"]))
    assert sink.items == ["a"]


async def test_a_second_attempt_writes_nothing_and_answers_duplicate(fake_clock: FakeClock) -> None:
    """P-T7; design 3.5: a unit skipped because of the ledger is `duplicate`."""
    sink = MemorySink[str]()
    first, second = RowBatch(["a", "b"]), RowBatch(["a", "b"])
    async with transaction(sink, UNIT) as tx:
        assert await send(tx, first) == {}
        tx.record(Counts(rows=2))
    async with transaction(stack(sink, Timeout(5.0)), UNIT) as again:
        assert again.committed is not None
        assert again.committed.counts.rows == 2
        assert await send(again, second) == {}
        again.record(Counts(rows=2))
    assert second.delivery.verdicts([0, 1]) == {Outcome.DUPLICATE: 2}
    assert sink.items == ["a", "b"]


async def test_two_attempts_at_once_have_one_effect(fake_clock: FakeClock) -> None:
    """P-T7: the second waits for the first and sees its commit; if the first fails, the second
    writes.
    """
    sink = MemorySink[str]()
    order: list[str] = []

    async def attempt(name: str, *, fails: bool = False) -> None:
        async with transaction(sink, UNIT) as tx:
            order.append(f"{name} {'sees the commit' if tx.committed else 'writes'}")
            await send(tx, RowBatch([name]))
            await fake_clock.sleep(1.0)
            if fails:
                raise LookupError(name)

    ended = await asyncio.gather(
        attempt("first", fails=True), attempt("second"), attempt("third"), return_exceptions=True
    )
    assert [type(error) for error in ended] == [LookupError, type(None), type(None)]
    assert order == ["first writes", "second writes", "third sees the commit"]
    assert sink.items == ["second"]


async def test_a_zombie_writes_nothing(fake_clock: FakeClock) -> None:
    """P-T8: the holder of a rolled-back transaction gets an error, whatever decorators
    surround it.
    """
    sink = MemorySink[str]()
    attempt = transaction(stack(sink, Timeout(5.0)), UNIT)
    tx = await attempt.__aenter__()
    assert not await attempt.__aexit__(LookupError, LookupError(), None)
    errors = await send(tx, RowBatch(["late"]))
    assert {type(error) for error in errors.values()} == {TransactionLost}
    async with transaction(sink, UNIT) as again:
        pass
    assert sink.items == []
    assert again.committed is not None


@pytest.mark.parametrize(
    ("changed", "said"), [({"parts": 8}, "in 4 parts"), ({"rule": "word"}, "'id'")]
)
async def test_other_parts_of_a_version_are_refused(
    fake_clock: FakeClock, changed: dict[str, Any], said: str
) -> None:
    """P-T6"""
    sink = MemorySink[str]()
    async with transaction(sink, UNIT):
        pass
    other = unit_of(part=2, **changed)
    with pytest.raises(UnitRefused, match=said):
        async with transaction(sink, other):
            pass
    async with transaction(sink, Unit(application="orders", version=8, part=2, parts=8)):
        pass


async def test_other_rows_under_a_committed_name_are_an_error(fake_clock: FakeClock) -> None:
    sink = MemorySink[str]()
    async with transaction(sink, UNIT) as tx:
        tx.record(Counts(rows=2))
    with pytest.raises(NonDeterministicReplay, match=r"2 rows.*has 3"):
        async with transaction(sink, UNIT) as tx:
            tx.record(Counts(rows=3))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"application": ""}, "application=''"),
        ({"application": "a\0b"}, "without NUL"),
        ({"version": -1}, "version=-1"),
        ({"part": 4}, "less than parts=4"),
        ({"parts": 0}, "parts=0"),
        ({"rule": None}, "rule=None"),
    ],
)
def test_a_bad_unit_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        unit_of(**values)


async def written(batch: Batch[str]) -> None: ...


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (FunctionSink(written), r"FunctionSink\(written\).*has no `transaction"),
        (
            stack(FanOut(MemorySink[str](), MemorySink[str]()), Timeout(1.0)),
            r"sink=FanOut.*no transaction spans two",
        ),
        (Router[str](str, {"a": MemorySink[str]()}), r"sink=Router.*no transaction spans two"),
    ],
)
def test_what_cannot_live_in_a_transaction_is_refused_by_name(sink: Any, said: str) -> None:
    """P-T21: on the driver, before anything is opened."""
    assert not capabilities_of(sink).transactional
    with pytest.raises(ConfigError, match=said):
        check_transactional(sink)
    with pytest.raises(ConfigError, match=said):
        transaction(sink)


def test_a_unit_has_a_name() -> None:
    assert UNIT.name == "orders:7:1"
