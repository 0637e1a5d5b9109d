"""A test's own stream log in its own schema.

White box: an installation on an open connection, and quoted names.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg

from sluicegate.postgres.client.names import quoted
from sluicegate.postgres.schema.installation import install

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Log:
    """An installed schema: its name and location."""

    dsn: str
    schema: str

    @property
    def sql(self) -> str:
        """The quoted name, for SQL."""
        return quoted(self.schema)

    @asynccontextmanager
    async def connected(self, **options: Any) -> AsyncGenerator[Any]:
        """An asyncpg connection as the superuser."""
        con = await asyncpg.connect(self.dsn, **options)
        try:
            yield con
        finally:
            await con.close()

    async def append(self, con: Any, stream: str, *numbers: int, **message: Any) -> list[int]:
        """Append messages of the type `happened` with `{"n": number}`; return their positions."""
        messages = [{"type": "happened", "data": {"n": number}, **message} for number in numbers]
        return await append(con, self.sql, stream, messages)


async def append(con: Any, sql: str, stream: str, messages: list[dict[str, Any]]) -> list[int]:
    """Append with the SQL function, in the connection's transaction if there is one."""
    rows = await con.fetch(
        f"SELECT r_position FROM {sql}.append($1, $2::text::jsonb)", stream, json.dumps(messages)
    )
    return [row["r_position"] for row in rows]


def fresh_name() -> str:
    """A schema name that no other test uses."""
    return f"log_{next(_NUMBERS)}"


def installed(dsn: str, schema: str | None = None) -> Log:
    """Install a log. Not for use on a running loop."""
    log = Log(dsn, schema or fresh_name())
    asyncio.run(install_log(log))
    return log


async def install_log(log: Log) -> None:
    async with log.connected() as con:
        await install(con, log.schema, library="test")


@dataclass(frozen=True)
class Role:
    """A role that may only log in."""

    name: str
    dsn: str


@asynccontextmanager
async def role(log: Log) -> AsyncGenerator[Role]:
    """A test's own role, dropped with all that it owns and all its permissions."""
    name = f"role_{next(_NUMBERS)}"
    user = log.dsn.partition("//")[2].partition("@")[0]
    async with log.connected() as con:
        await con.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        try:
            yield Role(name, log.dsn.replace(user, f"{name}:secret"))
        finally:
            await con.execute(
                f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}",
            )
