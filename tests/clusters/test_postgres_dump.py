"""A database that is dumped while sinks, sources and flows run, and goes on in a new server."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.clusters.postgres_parts import Parts
from tests.clusters.test_postgres import SETTINGS, assert_kept, finished

from sluicegate.postgres import check_streams
from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

BURN = """
DO $$ BEGIN
  FOR n IN 1..5000 LOOP
    PERFORM pg_current_xact_id();
    COMMIT;
  END LOOP;
END $$
"""

CONTINUE = """
UPDATE sluicegate_positions SET target_oid = 'copies'::regclass;
UPDATE count_positions SET target_oid = 'counts'::regclass, metadata = '';
"""
"""Tables that were restored from a dump are new ones: the statements of `exactly-once.md`."""


@pytest.fixture
def servers() -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    with ExitStack() as contexts:
        old = contexts.enter_context(there_or_skip("postgres", embedded_postgres(SETTINGS)))
        yield old, contexts.enter_context(embedded_postgres(SETTINGS))


def run(server: EmbeddedPostgres, program: str, *arguments: str) -> None:
    subprocess.run([str(server._binaries / program), *arguments], check=True)


async def last_transaction(dsn: str, statements: str) -> int:
    """Run the statements; return the number of the next transaction."""
    con = await asyncpg.connect(dsn)
    try:
        await con.execute(statements)
        return int(await con.fetchval("SELECT pg_current_xact_id()::text"))
    finally:
        await con.close()


async def nothing() -> None:
    pass


@pytest.mark.parametrize("when", ["after", pytest.param("during", marks=pytest.mark.long)])
async def test_everything_goes_on_in_a_new_server_whose_transactions_have_smaller_numbers(
    servers: tuple[EmbeddedPostgres, EmbeddedPostgres], tmp_path: Path, when: str
) -> None:
    """No position or lease depends on the number of a transaction. Items after the dump are lost,
    and jobs and messages that were in progress or settled after it come again.
    """
    old, new = servers
    parts = Parts(old.dsn, tmp_path / "spool")
    file = str(tmp_path / "dump")

    async def dump() -> None:
        await asyncio.to_thread(run, old, "pg_dump", "-Fc", "-f", file, old.dsn)

    async with asyncio.timeout(200):
        await parts.run(dump if when == "during" else nothing)
        before = await parts.results()
        if when == "after":
            await dump()
        burnt = await last_transaction(old.dsn, BURN)
        await asyncio.to_thread(run, new, "pg_restore", "-d", new.dsn, "--exit-on-error", file)
        assert await last_transaction(new.dsn, CONTINUE) < burnt
        assert await check_streams(new.dsn) == []
        parts.move_to(new.dsn)
        await parts.run(nothing)
    after = await finished(parts)
    if when == "after":
        assert_kept(after)
        assert not [part for part, each in after.items() if each.twice]
    else:
        assert {each.out_of_order for each in after.values()} == {0}
        assert (after["state"].lost, after["copies"].lost) == (0, 0)
        assert (after["state"].twice, after["copies"].twice) == (0, 0)
        assert after["rows"].lost <= before["rows"].records
