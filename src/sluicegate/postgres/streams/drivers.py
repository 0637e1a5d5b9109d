"""Statements on connections of the user, with any driver.

1. Drivers are recognised only among the loaded modules, since a connection exists only if its
   driver is loaded; no driver is imported.
2. Placeholders differ by driver, so a statement is created from a template for each: `$1`
   (asyncpg), `%s` (psycopg) and `:p1` (SQLAlchemy, with any driver).
3. Parameters and results have types that all drivers and codecs convert in the same way: text,
   whole numbers and booleans. Times are microseconds since the epoch.
4. Errors are recognised by their SQLSTATE, which each driver stores in a different place.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from ..._core.checks import bad
from ..._core.classify import caused, causes
from ..._core.errors import ConfigError, RefusedError
from ..._core.text import text_of
from ..client.names import quoted
from ..records.access import NO_RIGHT, NOT_INSTALLED

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    import asyncpg
    import psycopg
    from asyncpg.pool import PoolConnectionProxy
    from sqlalchemy.engine import Connection as SqlConnection
    from sqlalchemy.ext.asyncio import AsyncConnection as SqlAsyncConnection
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    from ..._core.errors import SluicegateError

    AsyncUserConnection: TypeAlias = (
        asyncpg.Connection[Any]
        | PoolConnectionProxy[Any]
        | psycopg.AsyncConnection[Any]
        | AsyncSession
        | async_scoped_session[Any]
        | SqlAsyncConnection
    )
    SyncUserConnection: TypeAlias = (
        psycopg.Connection[Any] | Session | scoped_session[Any] | SqlConnection
    )
    Value = str | int | bool | None


_ASYNC = (
    "a connection of asyncpg, an AsyncConnection of psycopg 3, or an AsyncSession or AsyncConnection "
    "of SQLAlchemy"
)
_SYNC = "a Connection of psycopg 3, or a Session or Connection of SQLAlchemy"
_ASYNCPG = ("asyncpg.connection.Connection", "asyncpg.pool.PoolConnectionProxy")
_ASYNC_SESSIONS = (
    "sqlalchemy.ext.asyncio.AsyncSession",
    "sqlalchemy.ext.asyncio.async_scoped_session",
)
_SESSIONS = ("sqlalchemy.orm.Session", "sqlalchemy.orm.scoped_session")
WRONG_HORIZON = "PS004"
"""An SQLSTATE of the schema's functions."""
_NO_TABLE = frozenset({"42P01", "42703"})
"""Missing table or column."""


async def call_async(connection: object, call: Query) -> Sequence[Sequence[Any]]:
    """Run the call on the user's async connection; return its rows. Raises `ConfigError`."""
    con = cast("Any", connection)
    if _is_one(con, *_ASYNCPG):
        return [tuple(row) for row in await con.fetch(call.numbered, *call.values)]
    if _is_one(con, "psycopg.AsyncConnection"):
        kind, rows = sys.modules["psycopg"], sys.modules["psycopg.rows"]
        async with kind.AsyncCursor(con, row_factory=rows.tuple_row) as cursor:
            await cursor.execute(call.formatted, call.values)
            return cast("list[Any]", await cursor.fetchall())
    if _is_one(con, *_ASYNC_SESSIONS):
        con = await con.connection()
    if _is_one(con, "sqlalchemy.ext.asyncio.AsyncConnection"):
        _check_dialect(con)
        made = sys.modules["sqlalchemy"].text(call.named)
        return cast("list[Any]", (await con.execute(made, call.named_values)).all())
    raise _not_one(con, _ASYNC)


def call_sync(connection: object, call: Query) -> Sequence[Sequence[Any]]:
    """Run the call on the user's blocking connection; return its rows. Raises `ConfigError`."""
    con = cast("Any", connection)
    if _is_one(con, "psycopg.Connection"):
        kind, rows = sys.modules["psycopg"], sys.modules["psycopg.rows"]
        with kind.Cursor(con, row_factory=rows.tuple_row) as cursor:
            cursor.execute(call.formatted, call.values)
            return cast("list[Any]", cursor.fetchall())
    if _is_one(con, *_SESSIONS):
        con = con.connection()
    if _is_one(con, "sqlalchemy.engine.Connection"):
        _check_dialect(con)
        made = sys.modules["sqlalchemy"].text(call.named)
        return cast("list[Any]", con.execute(made, call.named_values).all())
    raise _not_one(con, _SYNC)


def _is_one(thing: object, *paths: str) -> bool:
    """Return whether it is an instance of one of these classes, if their modules are loaded."""
    for path in paths:
        module, _, name = path.rpartition(".")
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(thing, kind):
            return True
    return False


def _check_dialect(con: Any) -> None:
    if con.dialect.name != "postgresql":
        raise ConfigError(
            f"connection={con.dialect.name!r}: the log is in PostgreSQL; pass a connection to it"
        )


def _not_one(con: object, allowed: str) -> ConfigError:
    kind = f"{type(con).__module__}.{type(con).__qualname__}"
    return ConfigError(f"connection={kind}: must be {allowed}")


class Query(NamedTuple):
    """A statement about the log in a schema.

    In the template, `{schema}` is the schema, and `{0}` and so on are the values, each once and in
    order.
    """

    schema: str
    template: str
    values: tuple[Value, ...] = ()

    @property
    def numbered(self) -> str:
        """The statement with `$1`."""
        return _numbered(self.template, self.schema, len(self.values))

    @property
    def formatted(self) -> str:
        """The statement with `%s`."""
        return self._with(("%s" for _ in self.values), self._name.replace("%", "%%"))

    @property
    def named(self) -> str:
        """The statement with `:p1`."""
        return self._with(
            (f":{name}" for name in self.named_values), self._name.replace(":", "\\:")
        )

    @property
    def named_values(self) -> dict[str, Value]:
        """The parameters of `named`."""
        return {f"p{number}": value for number, value in enumerate(self.values, 1)}

    @property
    def _name(self) -> str:
        return quoted(self.schema)

    def _with(self, places: Iterable[str], schema: str) -> str:
        return self.template.format(*places, schema=schema)


@lru_cache(maxsize=64)
def _numbered(template: str, schema: str, count: int) -> str:
    """Return a statement with `$1`, for `count` values."""
    return template.format(*(f"${number}" for number in range(1, count + 1)), schema=quoted(schema))


class Fault(NamedTuple):
    """The information in a driver's error."""

    state: str
    message: str
    detail: str
    constraint: str

    @classmethod
    def behind(cls, error: BaseException) -> Fault | None:
        """Read the innermost cause of `error` that has a SQLSTATE; `None` without one.

        The error around it may have its SQLSTATE but not its detail, as in SQLAlchemy 2.0 on
        asyncpg.
        """
        faults = [fault for each in causes(error) if (fault := cls.of(each)) is not None]
        return faults[-1] if faults else None

    @classmethod
    def of(cls, error: BaseException) -> Fault | None:
        """Read an asyncpg, psycopg or psycopg2 error; `None` for one without a SQLSTATE."""
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if not isinstance(state, str):
            return None
        told = getattr(error, "diag", None)  # of psycopg
        names = ("message", "detail", "constraint_name")
        if told is not None:
            names = ("message_primary", "message_detail", "constraint_name")
        message, detail, constraint = (
            found if isinstance(found := getattr(told or error, name, None), str) else ""
            for name in names
        )
        return cls(state, message or text_of(error), detail, constraint)


def read_fault(schema: str, error: Exception, repair: str) -> SluicegateError | None:
    """Return the error to raise for a driver's error; `None` for any other."""
    found = Fault.behind(error)
    if found is None:
        return None
    if found.state == WRONG_HORIZON:
        return caused(bad("connection", "...", found.message), error)
    if found.state in NOT_INSTALLED | _NO_TABLE:
        install = f"sluicegate pg install --schema {schema}, in the database of this connection"
        return caused(RefusedError(f"no log to read: {found.message}", repair=install), error)
    if found.state == NO_RIGHT:
        return caused(RefusedError(f"not allowed: {found.message}", repair=repair), error)
    return None


@contextmanager
def read_errors(schema: str, repair: str | None = None) -> Generator[None]:
    """Raise the errors of `read_fault` instead of the driver's, and other errors unchanged.

    `repair` is the remedy for a role without the right; by default, to grant it the right to read.
    """
    try:
        yield
    except Exception as error:
        give = f"sluicegate pg install --schema {schema} --read ROLE, as the owner of the schema"
        found = read_fault(schema, error, repair or give)
        if found is None:
            raise
        raise found  # noqa: B904  # it has its cause
