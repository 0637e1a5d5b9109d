"""A primary that is lost, frozen or made read-only, and a standby that takes over: access by a DSN
with several hosts.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.clusters.postgres_parts import ANSWER, Parts
from tests.kafka.source.storm_help import log_lines
from tests.postgres.pooler.pgbouncer import running

from sluicegate import Batcher, Limits, Retry, Timeout, stack
from sluicegate.postgres import PostgresAccess, PostgresSink
from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.clusters.postgres_parts import Result

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")
SETTINGS = {"fsync": "off", "max_wal_size": "64MB", "min_wal_size": "32MB"}


@pytest.fixture
def primary() -> Iterator[EmbeddedPostgres]:
    """A primary with one synchronous standby."""
    with there_or_skip("postgres", embedded_postgres(SETTINGS, standbys=["sync"])) as server:
        yield server


@pytest.fixture
def loose_primary() -> Iterator[EmbeddedPostgres]:
    """A primary with one asynchronous standby."""
    with there_or_skip("postgres", embedded_postgres(SETTINGS, standbys=["async"])) as server:
        yield server


@asynccontextmanager
async def writing(server: EmbeddedPostgres) -> AsyncIterator[Batcher[Any]]:
    """A batcher into a new table."""
    con = await asyncpg.connect(server.dsn)
    await con.execute("CREATE TABLE rows (n int PRIMARY KEY)")
    await con.close()
    access = PostgresAccess(server.any_dsn, answer_timeout=ANSWER)
    sink = PostgresSink(access, table="rows", columns=("n",), on_conflict="ignore")
    limits = Limits(max_items=10, max_delay=0.01)
    async with Batcher(stack(sink, Timeout(ANSWER), Retry(attempts=100)), limits=limits) as batcher:
        yield batcher


async def rows(dsn: str) -> list[int]:
    con = await asyncpg.connect(dsn)
    try:
        return [row["n"] for row in await con.fetch("SELECT n FROM rows ORDER BY n")]
    finally:
        await con.close()


async def promoted(server: EmbeddedPostgres) -> None:
    """Kill the primary, and promote its standby."""
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.standbys[0].start)
    await asyncio.to_thread(server.standbys[0].promote)


async def finished(parts: Parts) -> dict[str, Result]:
    """The results, printed for the table of the page."""
    results = await parts.results()
    for part, each in results.items():
        print(part, each)  # noqa: T201  # with -s
    print(len(parts.ticks), "ticks", parts.missing_ticks(), "missing")  # noqa: T201
    return results


def assert_kept(results: dict[str, Result]) -> None:
    """No part has lost an item, or has one out of order; tables have each of them once."""
    assert {(each.lost, each.out_of_order) for each in results.values()} == {(0, 0)}
    assert not [part for part in ("rows", "spool", "state", "copies") if results[part].twice]


async def test_a_synchronous_standby_loses_nothing(
    primary: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Jobs and messages may come twice: the last positions of their consumers may be lost."""
    parts = Parts(primary.dsn, tmp_path, through=primary.any_dsn)
    async with asyncio.timeout(200):
        await parts.run(lambda: promoted(primary))
    parts.dsn = primary.standbys[0].dsn
    assert_kept(await finished(parts))


@pytest.mark.long
async def test_an_asynchronous_standby_loses_what_it_did_not_have_and_this_is_told(
    loose_primary: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Everything else is handled, although the log is shorter than its readers knew it."""
    parts = Parts(loose_primary.dsn, tmp_path, through=loose_primary.any_dsn)

    async def lagging() -> None:
        await asyncio.to_thread(loose_primary.standbys[0].kill)
        await parts.seen(parts.fed + 20)
        await promoted(loose_primary)

    async with log_lines() as log, asyncio.timeout(200):
        await parts.run(lagging)
    parts.dsn = loose_primary.standbys[0].dsn
    results = await finished(parts)
    kept = results["state"].records
    print(parts.fed - kept, "messages gone")  # noqa: T201
    assert kept < parts.fed
    assert not [part for part, each in results.items() if each.out_of_order]
    assert results["state"].lost == results["copies"].lost == 0
    assert [line for line in log.lines() if "all: the slots" in line and "are lost" in line]
    assert [line for line in log.lines() if "is not in the log of the server" in line]


@pytest.mark.long
async def test_a_pooler_is_led_to_the_new_primary(
    primary: EmbeddedPostgres, tmp_path: Path
) -> None:
    """With the address of the pooler alone, programs continue on the other server."""
    with there_or_skip("pgbouncer", running(primary, default_pool_size="30")) as bouncer:
        parts = Parts(primary.dsn, tmp_path, through=bouncer.dsn)

        async def switch() -> None:
            await promoted(primary)
            await bouncer.serve(primary.standbys[0])

        async with asyncio.timeout(200):
            await parts.run(switch)
        parts.dsn = primary.standbys[0].dsn
        assert_kept(await finished(parts))


@pytest.mark.long
async def test_a_frozen_primary_is_left_for_its_successor(primary: EmbeddedPostgres) -> None:
    async with writing(primary) as batcher:
        await batcher.deliver({"n": 0})
        primary.pause()
        primary.standbys[0].promote()
        async with asyncio.timeout(3 * ANSWER + 5):
            await batcher.deliver({"n": 1})
        assert await rows(primary.standbys[0].dsn) == [0, 1]


async def test_a_primary_that_becomes_read_only_is_left_for_its_successor(
    primary: EmbeddedPostgres,
) -> None:
    async with writing(primary) as batcher:
        await batcher.deliver({"n": 0})
        con = await asyncpg.connect(primary.dsn)
        await con.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await con.execute("SELECT pg_reload_conf()")
        await con.close()
        primary.standbys[0].promote()
        async with asyncio.timeout(100):
            await batcher.deliver({"n": 1})
        assert await rows(primary.standbys[0].dsn) == [0, 1]
