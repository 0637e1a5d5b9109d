"""A hand-written queue without keys: locked rows are skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .ways import LEASE, PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

    from .ways import Jobs

CREATE = """CREATE TABLE unordered (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  payload jsonb NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  visible_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  attempts int NOT NULL DEFAULT 0
);
CREATE INDEX ON unordered (visible_at)"""
FILL = "INSERT INTO unordered (payload) SELECT $1 FROM generate_series(1, $2::int)"
TAKE = f"""UPDATE unordered u
SET visible_at = clock_timestamp() + interval '{LEASE} s', attempts = attempts + 1
FROM (
  SELECT id FROM unordered WHERE visible_at <= statement_timestamp()
  ORDER BY visible_at LIMIT $1 FOR UPDATE SKIP LOCKED) n
WHERE u.id = n.id RETURNING u.id, u.payload::text, u.at, u.attempts"""
DONE = "DELETE FROM unordered WHERE id = ANY ($1)"


class Unordered:
    """An `UPDATE` of unlocked rows, and a `DELETE`."""

    tables = ("unordered",)

    async def install(self, dsn: str) -> None:
        """Create the table."""
        import asyncpg

        con = await asyncpg.connect(dsn)
        await con.execute(CREATE)
        await con.close()

    async def fill(self, con: Connection, jobs: Jobs) -> None:
        """Enqueue jobs in one statement."""
        await con.execute(FILL, PAYLOAD, jobs.count)

    async def take(self, con: Connection, lanes: int, per: int) -> Sequence[Any]:
        """Take the first jobs."""
        rows: Sequence[Any] = await con.fetch(TAKE, lanes * per)
        return rows

    async def done(self, con: Connection, taken: Sequence[Any]) -> None:
        """Delete jobs."""
        await con.execute(DONE, [row["id"] for row in taken])


async def insert_unordered(con: Connection, key: str) -> None:
    """Enqueue a job, which has no key."""
    await con.execute("INSERT INTO unordered (payload) VALUES ($1)", PAYLOAD)


class UnorderedAsynchronous(Unordered):
    """The same, but taking jobs does not wait for the disk, as Sluicegate's claims do not."""

    async def install(self, dsn: str) -> None:
        """Do nothing: the table is that of the other one."""

    async def fill(self, con: Connection, jobs: Jobs) -> None:
        """Enqueue jobs as usual."""
        await super().fill(con, jobs)
        await con.execute("SET synchronous_commit = off")

    async def done(self, con: Connection, taken: Sequence[Any]) -> None:
        """Delete jobs, in one round trip and a commit that waits."""
        ids = ", ".join(str(row["id"]) for row in taken)
        await con.execute(
            "BEGIN; SET LOCAL synchronous_commit = on;"
            f"DELETE FROM unordered WHERE id = ANY ('{{{ids}}}'); COMMIT"
        )
