"""Readers by position, correct and faulty ones, and faults planted in the SQL of a log.

A scenario runs with the installed log, which must lose nothing, and among the long tests with a
fault of the kind that it guards against, which must be detected.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from tests.postgres.streams.log_help import Log

MESSAGE = "(stream, version, type, data)"
MARK = "pg_advisory_xact_lock_shared({class}::bigint << 48 | (%s))"
LAST = "SELECT last_value - (NOT is_called)::int FROM {schema}.position"
_NEXT = (
    "CREATE OR REPLACE FUNCTION {schema}.next_position() RETURNS bigint LANGUAGE plpgsql AS $$ "
    "DECLARE v bigint; BEGIN %s END $$"
)
_HORIZON = (
    "CREATE OR REPLACE FUNCTION {schema}.horizon() RETURNS bigint LANGUAGE plpgsql AS $$ "
    "DECLARE v bigint; m bigint; BEGIN %s END $$"
)
_NOTE = "current_setting('sluicegate.mark_{class}', true)"

NO_MARK = _NEXT % "RETURN nextval('{schema}.position');"
"""A plain sequence."""
DEFAULT_WITHOUT_MARK = (
    "ALTER TABLE {schema}.message ALTER position SET DEFAULT nextval('{schema}.position')"
)
"""The mark is taken only by appenders that call for it."""
MARK_AFTER_POSITION = _NEXT % (
    "v := nextval('{schema}.position'); PERFORM {schema}.gate(); "
    f"PERFORM {MARK % 'v - 1'}; RETURN v;"
)
MARK_OF_FRESH_SEQUENCE = _NEXT % (
    f"PERFORM {MARK % 'SELECT last_value FROM {schema}.position'}; "
    "RETURN nextval('{schema}.position');"
)
"""The `last_value` of an unused sequence is its first position."""
NOTE_OF_SESSION = _NEXT % (
    f"IF coalesce({_NOTE}, '') = '' THEN PERFORM {MARK % LAST}; "
    "PERFORM set_config('sluicegate.mark_{class}', 'taken', false); END IF; "
    "RETURN nextval('{schema}.position');"
)
"""The note of the mark outlives the transaction."""
NOTE_BEYOND_SAVEPOINT = _NEXT % (
    "IF NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() "
    "AND objsubid = 2 AND classid = 2 AND objid = {class}) THEN "
    f"PERFORM {MARK % LAST}; PERFORM pg_advisory_lock_shared(2, {{class}}); END IF; "
    "RETURN nextval('{schema}.position');"
)
"""The note of the mark outlives a rollback to a savepoint, but the mark does not."""
MARK_PER_POSITION = _NEXT % f"PERFORM {MARK % LAST}; RETURN nextval('{{schema}}.position');"
HORIZON_WITHOUT_MARKS = _HORIZON % f"RETURN ({LAST});"
HORIZON_MARKS_FIRST = _HORIZON % (
    "SELECT min(mark) INTO m FROM {schema}.appender; PERFORM {schema}.gate(); "
    f"v := ({LAST}); RETURN least(v, m);"
)
HORIZON_OF_SESSIONS = _HORIZON % (
    f"v := ({LAST}); SELECT min(mark) INTO m FROM {{schema}}.appender WHERE pid IS NOT NULL; "
    "RETURN least(v, m);"
)
"""Prepared transactions have no session."""
HORIZON_ANYWHERE = _HORIZON % (
    f"v := ({LAST}); SELECT min(mark) INTO m FROM {{schema}}.appender; RETURN least(v, m);"
)
"""Correct, but without the checks of where it is read."""
MARKS_OF_ANY_LOG = (
    "CREATE OR REPLACE VIEW {schema}.appender AS SELECT objid::bigint AS mark, pid, "
    "virtualtransaction FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
)

_GATE = """
CREATE OR REPLACE FUNCTION {schema}.gate() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('test.gated', true) = 'yes' THEN
    RAISE NOTICE 'at the gate';
    PERFORM pg_advisory_xact_lock_shared(1, {class});
  END IF;
END $$"""


def faults(*planted: str) -> list[Any]:
    """The log as installed, and among the long tests these faults."""
    return [None, *(pytest.param(each, marks=pytest.mark.long) for each in planted)]


@dataclass
class Reader:
    """Reads by position up to the horizon, like a subscription."""

    con: Any
    log: Log
    position: int = 0
    delivered: list[int] = field(default_factory=list)

    async def read(self) -> int:
        """Read the next messages; return the horizon."""
        horizon: int = await self.con.fetchval(f"SELECT {self.log.sql}.horizon()")
        await self._deliver("AND position <= $2", horizon)
        self.position = max(self.position, horizon)
        return horizon

    async def _deliver(self, condition: str, *values: object) -> None:
        query = f"SELECT position FROM {self.log.sql}.message WHERE position > $1 {condition}"
        found = await self.con.fetch(f"{query} ORDER BY position", self.position, *values)
        self.delivered += [row["position"] for row in found]


class OneStatementReader(Reader):
    """Reads the horizon and the messages in one statement, so in one snapshot."""

    async def read(self) -> int:
        rows = await self.con.fetch(
            f"SELECT h, position FROM (SELECT {self.log.sql}.horizon() AS h) AS now LEFT JOIN"
            f" {self.log.sql}.message ON position > $1 AND position <= h ORDER BY position",
            self.position,
        )
        self.delivered += [row["position"] for row in rows if row["position"] is not None]
        self.position = max(self.position, rows[0]["h"])
        return self.position


class TransactionIdReader(Reader):
    """Reads messages of transactions older than every open one, and resumes by position."""

    async def read(self) -> int:
        await self._deliver(
            "AND xmin::text::bigint < pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
        )
        self.position = max(self.delivered, default=self.position)
        return self.position


class GapReader(Reader):
    """Waits at each gap until it is filled."""

    async def read(self) -> int:
        known = len(self.delivered)
        await self._deliver("")
        while known < len(self.delivered) and self.delivered[known] == self.position + 1:
            self.position += 1
            known += 1
        del self.delivered[known:]
        return self.position


@dataclass
class Scene:
    """Two writers, a reader and an operator, each with a connection."""

    log: Log
    first: Any
    second: Any
    reader: Reader
    operator: Any

    async def append(self, con: Any, *, stream: str = "", count: int = 1) -> list[int]:
        """Append to a stream; each connection has its own by default."""
        return await self.log.append(con, stream or f"s-{id(con)}", *range(count))

    async def stored(self) -> list[int]:
        """The positions of all committed messages."""
        rows = await self.operator.fetch(
            f"SELECT position FROM {self.log.sql}.message ORDER BY position"
        )
        return [row["position"] for row in rows]

    async def lost(self) -> list[int]:
        """Committed positions that a last read does not deliver; the others arrived in order."""
        await self.reader.read()
        delivered = self.reader.delivered
        assert delivered == sorted(set(delivered))
        return sorted(set(await self.stored()) - set(delivered))

    async def marks(self) -> list[int]:
        """The held marks."""
        rows = await self.operator.fetch(f"SELECT mark FROM {self.log.sql}.appender ORDER BY mark")
        return [row["mark"] for row in rows]

    async def plant(self, *statements: str) -> None:
        """Execute statements on this log."""
        mark_class = await self.operator.fetchval(
            f"SELECT value FROM {self.log.sql}.meta WHERE name = 'class'"
        )
        for statement in statements:
            await self.operator.execute(
                statement.replace("{schema}", self.log.sql).replace("{class}", mark_class)
            )

    async def gated(self, function: str, before: str) -> None:
        """Make a function of the log wait before a piece of its text, in sessions that
        request it.
        """
        found: str = await self.operator.fetchval(
            "SELECT pg_get_functiondef($1::regprocedure)", f"{self.log.sql}.{function}()"
        )
        assert found.count(before) == 1
        await self.plant(_GATE)
        statement = f"PERFORM {self.log.sql}.gate(); {before}"
        await self.operator.execute(found.replace(before, statement))

    @asynccontextmanager
    async def at_gate(
        self, con: Any, action: Coroutine[Any, Any, Any]
    ) -> AsyncGenerator[asyncio.Task[Any]]:
        """Run a coroutine until it reaches the gate; open the gate at exit."""
        reached = asyncio.Event()
        con.add_log_listener(lambda *_: reached.set())
        await con.execute("SET test.gated = 'yes'")
        key = f"1, {await self._class()}"
        await self.operator.execute(f"SELECT pg_advisory_lock({key})")
        task = asyncio.create_task(action)
        arrival = asyncio.create_task(reached.wait())
        await asyncio.wait((task, arrival), return_when=asyncio.FIRST_COMPLETED)
        assert reached.is_set(), f"passed the gate: {task}"
        try:
            yield task
        finally:
            await self.operator.execute(f"SELECT pg_advisory_unlock({key})")
            await asyncio.wait((task,))

    async def _class(self) -> str:
        value: str = await self.operator.fetchval(
            f"SELECT value FROM {self.log.sql}.meta WHERE name = 'class'"
        )
        return value


@asynccontextmanager
async def scene(
    log: Log, bug: str | None = None, reader: type[Reader] = Reader
) -> AsyncGenerator[Scene]:
    """A log with a planted fault, and its users."""
    async with AsyncExitStack() as stack:
        first, second, reading, operator = [
            await stack.enter_async_context(log.connected()) for _ in range(4)
        ]
        made = Scene(log, first, second, reader(reading, log), operator)
        if bug is not None:
            await made.plant(_GATE, bug)
        yield made
