"""pgmq by the SQL in its Python client; the client itself is not used."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .ways import LEASE, PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

    from .ways import Jobs

FILL = """INSERT INTO pgmq.q_benchmark (vt, message, headers)
SELECT clock_timestamp(), $1, jsonb_build_object('x-pgmq-group', 'order-' || g % $2)
FROM generate_series(0, $3::int - 1) AS g"""
SEND = """SELECT * FROM pgmq.send(
  'benchmark', $2::jsonb, jsonb_build_object('x-pgmq-group', $1::text))"""


def _script() -> str:
    package = importlib.metadata.distribution("pgmq")
    return Path(str(package.locate_file("pgmq/sql/pgmq.sql"))).read_text(encoding="utf-8")


class Pgmq:
    """A reading function of pgmq, and `pgmq.delete`."""

    tables = ("pgmq.q_benchmark",)

    def __init__(self, read: str = "read") -> None:
        self._read = f"SELECT * FROM pgmq.{read}('benchmark', {LEASE}, $1)"

    async def install(self, dsn: str) -> None:
        """Create pgmq's schema and a queue, with the index for reads by group."""
        import asyncpg

        con = await asyncpg.connect(dsn)
        await con.execute(_script())
        await con.execute("SELECT pgmq.create('benchmark')")
        await con.execute("SELECT pgmq.create_fifo_index('benchmark')")
        await con.close()

    async def fill(self, con: Connection, jobs: Jobs) -> None:
        """Send messages in one statement, without pgmq's function."""
        await con.execute(FILL, PAYLOAD, jobs.keys, jobs.count)

    async def take(self, con: Connection, lanes: int, per: int) -> Sequence[Any]:
        """Read the first messages."""
        rows: Sequence[Any] = await con.fetch(self._read, lanes * per)
        return rows

    async def done(self, con: Connection, taken: Sequence[Any]) -> None:
        """Delete messages."""
        await con.fetch(
            "SELECT pgmq.delete('benchmark', $1::bigint[])", [row["msg_id"] for row in taken]
        )


async def send(con: Connection, key: str) -> None:
    """Send a message of a group."""
    await con.execute(SEND, key, PAYLOAD)
