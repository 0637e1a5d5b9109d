"""Objects with connections to a schema of streams and queues, and their statements."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..._core.classify import caused
from ..._core.errors import (
    ClosedError,
    ConfigError,
    RefusedError,
    SluicegateError,
    UnavailableError,
)
from ..._core.opening import Openable
from ..._core.text import text_of
from ..client.access import Access, need_asyncpg
from ..client.errors import LOCK_NOT_AVAILABLE, is_lost, shown, sqlstate
from ..client.names import quoted
from ..client.refusals import refusal, repair_of
from ..schema.opened import check_schema_name, connected_to_log

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Generator, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from ..client.access import PostgresAccess
    from ..client.connections import Connections

NO_QUEUE, BAD_RANGES = "PS010", "PS013"
NO_RIGHT = "42501"
NOT_INSTALLED = frozenset({"3F000", "42883"})
"""Missing schema, missing function."""
UNIQUE = "23505"


class SchemaObject(Openable):
    """An object with connections to a schema of streams and queues, while it is open."""

    _run_time: ClassVar[tuple[str, ...]] = ("_connections",)

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        schema: str,
        size: int | None,
        lease: float | timedelta | None = None,
        statement_timeout: float | None = None,
    ) -> None:
        need_asyncpg()
        self._access = Access.of(dsn, size=size, lease=lease, statement_timeout=statement_timeout)
        self._schema = check_schema_name(schema)
        self._connections: Connections | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        self._connections = await connected_to_log(stack, self._access, self._schema)

    @property
    def _opened(self) -> Connections:
        if self._connections is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._connections

    def _access_to(self, subject: Literal["queues", "log"]) -> SchemaAccess:
        return SchemaAccess(self._opened, self._schema, self._access.place, subject)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._access.place}, schema={self._schema!r})"


class SchemaAccess:
    """Statements on a schema, whose errors are meant for operators.

    Raises `ConfigError` for a queue that does not exist and for invalid ranges, `RefusedError` if
    the role lacks a privilege, and `UnavailableError` without a connection.
    """

    def __init__(
        self,
        connections: Connections,
        schema: str,
        place: str,
        subject: Literal["queues", "log"],
    ) -> None:
        self._connections = connections
        self.schema = schema
        self._place = place
        self._subject = subject

    async def rows(self, query: str, *arguments: object) -> list[Any]:
        """Return the rows of one statement, which is its own transaction."""
        with self._errors():
            return await self._connections.fetch(
                query.replace("{schema}", quoted(self.schema)), *arguments
            )

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[SchemaStatements]:
        """Run statements that take effect together, or not at all."""
        with self._errors():
            async with self._connections.asking() as con:
                statements = SchemaStatements(con, self.schema)
                if con.is_in_transaction():  # always the case behind a pooler
                    yield statements
                    return
                async with con.transaction(isolation="read_committed"):
                    yield statements

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except SluicegateError:
            raise
        except Exception as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> Exception:
        state = sqlstate(error)
        if is_lost(error):
            text = f"the connection to {self._place} was lost; check whether the change took effect"
            return caused(UnavailableError(f"{text} ({shown(error)})"), error)
        if state is None:
            return error
        if state in {NO_QUEUE, BAD_RANGES}:
            return caused(ConfigError(text_of(error)), error)
        where = f"the {self._subject} at {self._place}"
        if state == LOCK_NOT_AVAILABLE:
            text = f"{where}: open transactions that have written jobs did not end in time"
            return caused(RefusedError(text, repair="end them, or try again"), error)
        repair = repair_of(error, self._place)
        if state == NO_RIGHT:
            right = "operate" if self._subject == "queues" else "subscribe"
            install = f"`sluicegate pg install DSN --schema {self.schema} --{right} ROLE`"
            repair = f"connect as the owner of the schema, or have the owner run {install}"
        return refusal(error, where, repair)


class SchemaStatements:
    """The statements of one transaction."""

    def __init__(self, con: Any, schema: str) -> None:
        self._con = con
        self._schema = quoted(schema)

    async def rows(self, query: str, *arguments: object) -> list[Any]:
        """Return the rows of one statement. Raises client errors."""
        found: list[Any] = await self._con.fetch(
            query.replace("{schema}", self._schema), *arguments
        )
        return found


@dataclass(frozen=True, slots=True)
class OpenAppender:
    """A transaction that holds the horizon."""

    pid: int
    application: str
    user: str | None
    state: str | None
    age: float | None
    """Seconds since it began; `None` if the role may not see it."""

    def __str__(self) -> str:
        application = f"application {self.application!r}" if self.application else None
        user = f"user {self.user!r}" if self.user else None
        age = f"open for {self.age:.0f} s" if self.age is not None else None
        return ", ".join(filter(None, [f"pid {self.pid}", application, user, self.state, age]))


def oldest_appender(schema: str) -> str:
    """Return the query for the oldest one; `schema` is a quoted name."""
    return (
        "SELECT p.pid, coalesce(s.application_name, '') AS application, "  # noqa: S608
        "s.usename::text AS user, s.state, "
        "extract(epoch FROM clock_timestamp() - s.xact_start)::float8 AS age "
        f"FROM {schema}.appender p LEFT JOIN pg_stat_activity s USING (pid) "
        "ORDER BY p.mark, s.xact_start LIMIT 1"
    )


def appender_of(rows: Sequence[Any]) -> OpenAppender | None:
    """Return the appender of a row; `None` if no appending transaction is open."""
    return OpenAppender(*rows[0]) if rows else None


def nearest(name: str, others: Collection[str]) -> str:
    """Return what there is instead of `name`, the most similar names first, for a message."""
    near = dict.fromkeys((*get_close_matches(name, others), *others))
    return f"it has {', '.join([*near][:5])}" if near else "it has none"
