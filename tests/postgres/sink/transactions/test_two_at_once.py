"""A batch in two open transactions: it belongs to the first one until that has ended.

White box: sinks are opened and asked as the batcher does it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.sink.transactions.postgres_transaction_help import place, words

from sluicegate import Batch, ConfigError, PermanentError, RowBatch, WriteResult, send, transaction
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate.batcher import LoopClock
    from sluicegate.sinks import Transaction, Unit
    from sluicegate.testing import EmbeddedPostgres, FakeClock

OPEN = "sent in another transaction that has not ended"


class Refusing(MemorySink[Any]):
    """Refuses the items "bad" in its transactions."""

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Transaction[Any]]:
        async with super().transaction(unit) as within:
            keep = within.write

            async def write(batch: Batch[Any]) -> WriteResult | None:
                bad = [i for i, item in enumerate(batch) if item == "bad"]
                await keep(batch.pick([i for i in range(len(batch)) if i not in bad]))
                return WriteResult.failed(batch, dict.fromkeys(bad, PermanentError("bad")))

            within.write = write  # type: ignore[method-assign]
            yield within


def outcomes(batch: Batch[Any]) -> list[str]:
    return [batch.delivery.verdict(index).value for index in range(len(batch))]


async def test_postgres_a_second_transaction_does_not_count_rows_of_a_first_that_rolls_back(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T62: otherwise `send` would report the rows as written although neither transaction has
    them.
    """
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        batch, others = RowBatch(words(2)), RowBatch(words(2, 10))
        async with transaction(sink) as second:
            assert await send(second, others) == {}
            with pytest.raises(LookupError):
                async with transaction(sink) as first:
                    assert await send(first, batch) == {}
                    with pytest.raises(ConfigError, match=OPEN):
                        await send(second, batch)
                    with pytest.raises(ConfigError, match=OPEN):
                        await send(sink, batch)
                    raise LookupError
            assert outcomes(batch) == ["unsent"] * 2
            assert await send(second, batch) == {}
        stored = await db.con.fetch(f"SELECT id FROM {db.table} ORDER BY id")
        assert [row["id"] for row in stored] == [0, 1, 10, 11]
        assert outcomes(batch) == ["delivered"] * 2


async def test_postgres_rows_of_a_transaction_that_rolls_back_are_not_booked_by_another(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T62: the commit of the first one must not book other items of the batch as delivered."""
    async with place(embedded_postgres.dsn) as db, db.sink() as sink:
        batch = RowBatch(words(4))
        with pytest.raises(LookupError):
            async with transaction(sink) as second:
                async with transaction(sink) as first:
                    assert await send(first, batch.pick([0, 1])) == {}
                    with pytest.raises(ConfigError, match=OPEN):
                        await send(second, batch.pick([2, 3]))
                assert await send(second, batch) == {}
                assert outcomes(batch) == ["delivered"] * 4
                raise LookupError
        stored = await db.con.fetch(f"SELECT id FROM {db.table} ORDER BY id")
        assert [row["id"] for row in stored] == [0, 1]
        assert outcomes(batch) == ["delivered"] * 2 + ["unsent"] * 2


async def test_two_transactions_side_by_side_have_one_of_them_refused(
    fake_clock: FakeClock,
) -> None:
    sink, batch = MemorySink[str](), RowBatch("ab")
    async with transaction(sink) as first, transaction(sink) as second:
        told = await asyncio.gather(send(first, batch), send(second, batch), return_exceptions=True)
    assert told[0] == {}
    assert isinstance(told[1], ConfigError)
    assert sink.items == ["a", "b"]
    assert outcomes(batch) == ["delivered"] * 2


async def test_items_that_failed_in_an_open_transaction_belong_to_it_too(
    fake_clock: FakeClock,
) -> None:
    sink, batch = Refusing(), RowBatch(["a", "bad"])
    async with transaction(sink) as second:
        async with transaction(sink) as first:
            assert list(await send(first, batch)) == [1]
            with pytest.raises(ConfigError, match=OPEN):
                await send(second, batch.pick([1]))
        assert list(await send(second, batch)) == [1]
    assert sink.items == ["a"]


async def test_after_the_commit_only_the_same_sink_omits_the_items(fake_clock: FakeClock) -> None:
    sink, other, batch = MemorySink[str](), MemorySink[str](), RowBatch("ab")
    async with transaction(sink) as tx:
        assert await send(tx, batch) == {}
    async with transaction(sink) as tx:
        assert await send(tx, batch) == {}
    assert await send(sink, batch) == {}
    async with transaction(other) as tx:
        with pytest.raises(ConfigError, match="settled by another sink"):
            await send(tx, batch)
    assert sink.items == ["a", "b"]


async def test_after_a_rollback_another_sink_gets_all_items(fake_clock: FakeClock) -> None:
    sink, other, batch = MemorySink[str](), MemorySink[str](), RowBatch("ab")
    with pytest.raises(LookupError):
        async with transaction(sink) as tx:
            assert await send(tx, batch) == {}
            raise LookupError
    assert await send(other, batch) == {}
    assert other.items == ["a", "b"]
