"""A turn of a queue counts only if all of its jobs were handled."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pytest
from benchmarks.cases import CASES as LISTED
from benchmarks.cases.postgres.queues import BEHIND, CASES, LEASES, MANY
from benchmarks.harness import measure, placed
from benchmarks.postgres.queues.lanes import (
    Lanes,
    LanesWithBells,
    LanesWithoutBells,
    consumed,
    insert,
)
from benchmarks.postgres.queues.unordered import Unordered, UnorderedAsynchronous
from benchmarks.postgres.queues.ways import Jobs, drained, enqueued, fetched, looped
from tests.benchmarks.made import a_case

from benchmarks import tables

if TYPE_CHECKING:
    from benchmarks.postgres.queues.ways import Way

    from sluicegate.testing import EmbeddedPostgres

WAYS: dict[str, Way] = {
    "lanes": Lanes(),
    "unordered": Unordered(),
    "asynchronous": UnorderedAsynchronous(),
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def dsn(embedded_postgres: EmbeddedPostgres) -> str:
    """A database with the tables of the candidates that need no installation."""
    import asyncpg

    name = f"queue_ways_{next(_numbers)}"
    own = urlunsplit(urlsplit(embedded_postgres.dsn)._replace(path=name))

    async def make() -> None:
        con = await asyncpg.connect(embedded_postgres.dsn)
        await con.execute(f"CREATE DATABASE {name}")
        await con.close()
        for way in WAYS.values():
            await way.install(own)

    asyncio.run(make())
    return own


def test_the_cases_of_queues_are_listed() -> None:
    assert [case for case in LISTED if case.name.startswith("queue")] == list(CASES)


@pytest.mark.parametrize("name", WAYS)
def test_one_worker_takes_every_job_once(dsn: str, name: str) -> None:
    jobs = Jobs(100, keys=10)
    assert drained(dsn, WAYS[name], jobs, LEASES[MANY], 100).wall > 0
    with pytest.raises(AssertionError, match="1 of 101 jobs were not there"):
        drained(dsn, WAYS[name], jobs, LEASES[MANY], 101)


@pytest.mark.parametrize("name", WAYS)
def test_a_loop_by_hand_handles_every_job(dsn: str, name: str) -> None:
    assert looped(dsn, WAYS[name], Jobs(100, keys=10), 30).wall > 0


def test_a_consumer_handles_every_job(dsn: str) -> None:
    assert consumed(dsn, Jobs(100, keys=10)).wall > 0


def test_jobs_behind_a_hot_key_are_fetched(dsn: str) -> None:
    assert fetched(dsn, Lanes(), hot=50, behind=BEHIND, count=3).wall > 0


def test_jobs_without_the_trigger_ring_no_bells_and_with_it_again_they_do(dsn: str) -> None:
    async def bells() -> tuple[int, int]:
        import asyncpg

        con = await asyncpg.connect(dsn)
        found = await con.fetchrow(
            "SELECT (SELECT count(*) FROM sluicegate.job), (SELECT count(*) FROM sluicegate.bell)"
        )
        await con.close()
        assert found is not None
        return found[0], found[1]

    warm_up = 64
    enqueued(dsn, LanesWithoutBells(), insert, 10)
    assert asyncio.run(bells()) == (10 + warm_up, 0)
    enqueued(dsn, LanesWithBells(), insert, 10)
    assert asyncio.run(bells()) == (10 + warm_up, 10 + warm_up)


def test_a_peer_that_is_left_out_has_no_table_of_ratios() -> None:
    turn = placed("ours", "at", lambda: 4e-9, ours=True)
    results = measure(replace(a_case(turn), along="work"), items=1, rounds=1)
    assert "x peer" not in tables.for_markdown(results)
