"""Positions in PostgreSQL that an operator moved without the state, or a state that was emptied:
refused before any event is handled, with the SQL statements that repair it.

White box: the keeper of one partition, and its log of changes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import pytest
from state_help import state_tables

from sluicegate import Consumer
from sluicegate.consumer import MemoryLog, MemorySource, Record, TopicPartition
from sluicegate.errors import PositionLost
from sluicegate.flow.state.changes import ChangeLog

if TYPE_CHECKING:
    from state_help import StateTables

    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

RESET = 'UPDATE "{positions}" SET position = 2'
ROW_DELETED = 'DELETE FROM "{positions}"'
EMPTIED = 'TRUNCATE "{table}"'
OLDER = 'UPDATE "{table}" SET value = replace(value::text, \'"number": \', \'"number": 1\')::json WHERE partition < 0'

NEWER = OLDER.replace("number", "format")  # 11


class Counted:
    """Runs over a log that count its events."""

    def __init__(self, tables: StateTables) -> None:
        self.tables = tables
        self.refusal = ""
        self.handled: list[int] = []

    async def run(self, count: int, codec: Any = None) -> None:
        """Count the events of a log; record the reason of a refusal."""
        log = MemoryLog([Record("t", 0, at, "k", b"") for at in range(count)])
        async with (
            self.tables.state(codec=codec) as state,
            Consumer(
                state.attach(MemorySource(log, ends=True)), ordering="partition", budget=0.3
            ) as consumer,
        ):
            restoring = state._kept.restore  # type: ignore[union-attr]

            async def restored(*arguments: Any) -> Any:
                try:
                    return await restoring(*arguments)
                except Exception as error:
                    self.refusal = str(error)
                    raise

            state._kept.restore = restored  # type: ignore[union-attr, method-assign]
            await consumer.run_events(self.handle, state=state)

    async def handle(self, context: EventContext) -> None:
        """Count."""
        self.handled.append(context.message.offset)
        context.store.put("n", context.store.get("n", 0) + 1)

    async def refused(self, what: str) -> list[str]:
        """Change a table; return the statements in the refusal."""
        names = {"positions": self.tables.positions, "table": self.tables.table}
        await self.tables.con.execute(what.format(**names))
        self.handled.clear()
        await self.run(6)
        assert self.handled == []
        found = re.split(r"(?=UPDATE|DELETE FROM)", self.refusal)[1:]
        return [each[: each.rindex(";") + 1] for each in found]


@pytest.mark.parametrize(
    "change", [RESET, ROW_DELETED, pytest.param(OLDER, marks=pytest.mark.long)]
)
async def test_a_position_that_is_not_that_of_the_state(
    embedded_postgres: EmbeddedPostgres, change: str
) -> None:
    """consumer/G29: its events would be counted twice. The first statement continues with the
    state.
    """
    async with state_tables(embedded_postgres.dsn) as tables:
        counted = Counted(tables)
        await counted.run(5)
        statements = await counted.refused(change)
        await tables.con.execute(statements[0])
        await counted.run(6)
        assert counted.handled == [5]
        assert await tables.stored() == (6, {"n": 6})


@pytest.mark.long
async def test_a_position_that_was_moved_on_purpose(embedded_postgres: EmbeddedPostgres) -> None:
    """The operator can keep the state, or begin with an empty one at that position."""
    async with state_tables(embedded_postgres.dsn) as tables:
        counted = Counted(tables)
        await counted.run(5)
        _, *nevertheless = await counted.refused(RESET)
        await tables.con.execute("".join(nevertheless[:2]))
        await counted.run(6)
        assert await tables.stored() == (6, {"n": 9})
        _, _, _, *empty = await counted.refused(RESET)
        await tables.con.execute("".join(empty))
        await counted.run(6)
        assert await tables.stored() == (6, {"n": 4})


async def test_a_state_of_a_newer_format(embedded_postgres: EmbeddedPostgres) -> None:
    """It is not read as if it were of this one, and stays."""
    async with state_tables(embedded_postgres.dsn) as tables:
        counted = Counted(tables)
        await counted.run(5)
        await counted.refused(NEWER)
        assert "has format 11, and this release of Sluicegate knows format 1" in counted.refusal
        assert await tables.stored() == (5, {"n": 5})


async def test_a_state_that_was_emptied(embedded_postgres: EmbeddedPostgres) -> None:
    """Its totals would start from zero. The statement continues with the remaining state."""
    async with state_tables(embedded_postgres.dsn) as tables:
        counted = Counted(tables)
        await counted.run(5)
        (accept,) = await counted.refused(EMPTIED)
        assert "rows were deleted" in counted.refusal
        await tables.con.execute(accept)
        await counted.run(6)
        assert await tables.stored() == (6, {"n": 1})


async def test_a_recreated_table_is_accepted_by_one_statement(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """The statement in the claim's refusal also covers the mark."""
    async with state_tables(embedded_postgres.dsn) as tables:
        counted = Counted(tables)
        await counted.run(5)
        await tables.con.execute(f'DROP TABLE "{tables.table}"')
        async with tables.state() as state:
            state.attach(MemorySource(MemoryLog([])))
            with pytest.raises(Exception, match="dropped and recreated") as told:
                await state._kept.take([TopicPartition("t", 0)])  # type: ignore[union-attr]
        (statement,) = re.findall(r"position: (UPDATE .*?) ?; or", str(told.value))
        await tables.con.execute(statement)
        await counted.run(6)
        assert await tables.stored() == (6, {"n": 1})


class Packed:
    """Values as bytes."""

    column: Literal["json", "text", "bytea"] = "bytea"

    def encode(self, value: int) -> bytes:
        return b"\xff%d" % value

    def decode(self, stored: bytes) -> int:
        return int(stored[1:])


@pytest.mark.long
async def test_marks_of_a_state_in_bytes(embedded_postgres: EmbeddedPostgres) -> None:
    async with state_tables(embedded_postgres.dsn) as tables:
        counted = Counted(tables)
        await counted.run(5, Packed())
        await counted.run(6, Packed())
        assert counted.handled == [*range(6)]
        await tables.con.execute(RESET.format(positions=tables.positions))
        await counted.run(6, Packed())
        assert "it was moved without the state" in counted.refusal
        assert counted.handled == [*range(6)]


async def test_a_position_moved_during_a_commit_without_an_answer(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """The position is lost, as after any other move: the next transaction would hide the move."""
    async with state_tables(embedded_postgres.dsn) as tables, tables.state() as state:
        source = state.attach(MemorySource(MemoryLog([])))
        assert source is not None
        assert state._kept is not None
        keeper, part = state._kept._keeper, TopicPartition("t", 0)
        await state._kept.take([part])
        log = ChangeLog(10, 1000)
        await keeper.store(part, log.take(5))
        await tables.con.execute(RESET.format(positions=tables.positions))
        with pytest.raises(PositionLost, match="changed by other means"):
            await keeper.has_stored(part, log.take(7))


@pytest.mark.parametrize("codec", [None, Packed()])
async def test_a_state_that_is_emptied_while_it_is_used(
    embedded_postgres: EmbeddedPostgres, codec: Any
) -> None:
    """consumer/G29: the next mark would hide it, and a restart lose all entries but later ones."""
    async with (
        state_tables(embedded_postgres.dsn) as tables,
        tables.state(codec=codec) as state,
    ):
        state.attach(MemorySource(MemoryLog([])))
        assert state._kept is not None
        keeper, part, log = state._kept._keeper, TopicPartition("t", 0), ChangeLog(10, 1000)
        await state._kept.take([part])
        await keeper.store(part, log.take(5))
        await keeper.store(part, log.take(6))
        await tables.con.execute(EMPTIED.format(table=tables.table))
        with pytest.raises(PositionLost, match="deleted while it was used"):
            await keeper.store(part, log.take(7))
        assert await tables.position() == 6
