"""Rows in PostgreSQL and the source's position commit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_table import kept_table, row_of
from piping import P0, P1, records

from penstock import PositionLost, PositionUnit, RowBatch, flow, send, transaction
from penstock.sources import Position
from penstock.sources.memory import MemoryLog, MemorySource

if TYPE_CHECKING:
    from penstock.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")


def row(at: int) -> tuple[int, int, str]:
    """A row of partition 0."""
    return 0, at, "k"


async def test_every_record_is_committed_once_and_in_order(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        log = MemoryLog([*records(range(30)), *records(range(7), partition=1)])
        source = MemorySource(log, ends=True)
        pipe = flow.transaction(source, kept.sink(), row_of, commit_after=8, commit_every=0.01)
        report = await pipe.run()
        assert report.complete
        rows = await kept.rows()
        for partition, count in ((0, 30), (1, 7)):
            assert [at for part, at in rows if part == partition] == list(range(count))
        assert await kept.stored() == {("memory", 0): 30, ("memory", 1): 7}


async def test_a_restart_continues_behind_the_stored_position(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        log = MemoryLog(records(range(6)))
        for count in (6, 9):
            source = MemorySource(log, ends=True)
            await flow.transaction(source, kept.sink(), row_of, commit_every=0.01).run()
            assert [at for _, at in await kept.rows()] == list(range(count))
            for record in records(range(3), first=6) if count == 6 else ():
                log.append(record)


async def test_a_claim_ends_the_transaction_of_the_owner_before(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with kept_table(embedded_postgres.dsn) as kept:
        async with kept.sink() as first, kept.sink() as second:
            assert await first.claim_positions("g", [P0]) == {}
            await second.claim_positions("g", [P1])
            with pytest.raises(PositionLost, match="another process took it over"):
                async with transaction(first, PositionUnit("g", P0, Position(5))) as tx:
                    assert not await send(tx, RowBatch([row(0)]))
                    await second.claim_positions("g", [P0])
            async with transaction(second, PositionUnit("g", P0, Position(1))) as tx:
                assert not await send(tx, RowBatch([row(7)]))
            assert await first.store_positions("g", {P0: Position(9)}) == []
        assert await kept.rows() == [(0, 7)]
        assert (await kept.stored())["g", 0] == 1
