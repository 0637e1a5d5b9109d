"""A table in an embedded PostgreSQL, and the time that a client takes to fill it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from .harness import CaseUnavailableError
from .stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = tuple[Any, ...]
Write = Callable[[Sequence[Row]], Awaitable[object]]

NO_WAIT = "?options=-csynchronous_commit%3Doff"
"""Appended to a DSN, so that commits do not wait for the disk. That wait is the same for every
client, and on a busy disk it hides all differences.
"""
MOST_PARAMETERS = 32_767
"""Maximum number of parameters of one statement in PostgreSQL's protocol."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table's name, and its columns with their types."""

    name: str
    types: dict[str, str]
    key: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.types)

    @property
    def names(self) -> str:
        """The columns as a list in SQL."""
        return ", ".join(self.types)

    @property
    def most_rows(self) -> int:
        """The maximum number of rows in one statement with a parameter for each value."""
        return MOST_PARAMETERS // len(self.types)

    @property
    def definition(self) -> str:
        """The statement that creates it."""
        columns = [f"{name} {kind}" for name, kind in self.types.items()]
        key = [f"PRIMARY KEY ({self.key})"] if self.key else []
        return f"CREATE TABLE {self.name} ({', '.join(columns + key)})"


@dataclass(frozen=True, slots=True)
class Destination:
    """A table of a server, and the final clauses of an `INSERT` into it."""

    dsn: str
    table: Table
    clauses: str = ""

    async def execute(self, *statements: str) -> None:
        """Execute statements on a separate connection."""
        import asyncpg

        connection = await asyncpg.connect(self.dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def make_empty(self, *statements: str) -> None:
        """Replace the table with an empty one, then execute these statements."""
        await self.execute(
            f"DROP TABLE IF EXISTS {self.table.name}", self.table.definition, *statements
        )

    async def value(self, query: str) -> Any:
        """Return the single value of a query."""
        import asyncpg

        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    async def check(self, count: int) -> None:
        """Raise `AssertionError` unless the table has this number of rows."""
        found = await self.value(f"SELECT count(*) FROM {self.table.name}")
        if found != count:
            raise AssertionError(f"{found} of {count} rows arrived")


Opener = Callable[[Destination], AbstractAsyncContextManager[Write]]
"""Opens a client of a destination, for `async with`."""


async def timed(opener: Opener, to: Destination, batches: Sequence[Sequence[Row]]) -> Took:
    """Write batches, the first of them untimed, since a connection that has been open for a while
    has prepared its statements.
    """
    async with opener(to) as write:
        await write(batches[0])
        watch = Stopwatch()
        for batch in batches[1:]:
            await write(batch)
        return watch.read()


def values_of(to: Destination, rows: int) -> str:
    """Build an `INSERT` with this number of rows of parameters."""
    width = len(to.table.types)
    places = ", ".join(
        f"({', '.join(f'${first + n + 1}' for n in range(width))})"
        for first in range(0, rows * width, width)
    )
    return f"INSERT INTO {to.table.name} ({to.table.names}) VALUES {places}{to.clauses}"


def insert_of(to: Destination, place: str) -> str:
    """Build an `INSERT` of one row with identical parameter placeholders."""
    places = ", ".join(repeat(place, len(to.table.types)))
    return f"INSERT INTO {to.table.name} ({to.table.names}) VALUES ({places}){to.clauses}"


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Provide the DSN of an embedded PostgreSQL. Raises `CaseUnavailableError` without one."""
    try:
        import asyncpg  # noqa: F401

        from sluicegate.testing import EmbeddedUnavailable, embedded_postgres
    except ImportError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    with contextlib.ExitStack() as opened:
        try:
            server = opened.enter_context(embedded_postgres())
        except EmbeddedUnavailable as missing:
            raise CaseUnavailableError(str(missing)) from missing
        yield server.dsn


def installed(*modules: str) -> bool:
    """Return whether client libraries are installed. A case skips peers without their library."""
    return all(importlib.util.find_spec(module) is not None for module in modules)
