"""Connections of the user: find the driver of a connection, and make a call on it.

Drivers are recognised only among the loaded modules, since a connection exists only if its driver
is loaded; no driver is imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ...._core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg
    import psycopg
    from asyncpg.pool import PoolConnectionProxy
    from sqlalchemy.engine import Connection as SqlConnection
    from sqlalchemy.ext.asyncio import AsyncConnection as SqlAsyncConnection
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    from ..messages.append import AppendCall
    from ..messages.query import Query


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
_INSTEAD = {
    "asyncpg.pool.Pool": "take a connection of the pool: async with pool.acquire() as connection",
    "psycopg_pool.ConnectionPool": "take a connection of the pool: with pool.connection()",
    "psycopg_pool.AsyncConnectionPool": "take a connection of the pool: async with pool.connection()",
    "psycopg.Cursor": "pass the cursor's connection: cursor.connection",
    "psycopg.AsyncCursor": "pass the cursor's connection: cursor.connection",
    "sqlalchemy.engine.Engine": "begin a transaction: with engine.begin() as connection",
    "sqlalchemy.ext.asyncio.AsyncEngine": (
        "begin a transaction: async with engine.begin() as connection"
    ),
    "sqlalchemy.orm.sessionmaker": "begin a session: with maker.begin() as session",
    "sqlalchemy.ext.asyncio.async_sessionmaker": (
        "begin a session: async with maker.begin() as session"
    ),
    "psycopg2.extensions.connection": (
        "psycopg2 is supported only through SQLAlchemy; otherwise call the SQL function append()"
    ),
}


async def call_async(connection: object, call: AppendCall | Query) -> Sequence[Sequence[Any]]:
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
    raise _not_one(con, _ASYNC, other=_is_sync(con), use="append_sync()")


def call_sync(connection: object, call: AppendCall | Query) -> Sequence[Sequence[Any]]:
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
    raise _not_one(con, _SYNC, other=_is_async(con), use="await append()")


def _is_sync(con: object) -> bool:
    return _is_one(con, "psycopg.Connection", *_SESSIONS, "sqlalchemy.engine.Connection")


def _is_async(con: object) -> bool:
    return _is_one(
        con,
        *_ASYNCPG,
        "psycopg.AsyncConnection",
        *_ASYNC_SESSIONS,
        "sqlalchemy.ext.asyncio.AsyncConnection",
    )


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


def _not_one(con: object, allowed: str, *, other: bool, use: str) -> ConfigError:
    kind = f"{type(con).__module__}.{type(con).__qualname__}"
    if other:
        return ConfigError(f"connection={kind}: use {use} for it; this needs {allowed}")
    instead = next((text for path, text in _INSTEAD.items() if _is_one(con, path)), None)
    hint = "" if instead is None else f"; {instead}"
    return ConfigError(f"connection={kind}: must be {allowed}{hint}")
