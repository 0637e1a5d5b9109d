"""Servers that are killed and frozen, and connections that are cut, under consumers of a queue."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.postgres.queues.source.kills_help import LEASE, WITHIN, Queue, queue, stop
from tests.postgres.queues.source.outages_help import Running, running
from tests.postgres.sink.postgres_help import Proxy, proxied
from tests.postgres.streams.log_help import Log, fresh_name, install_log

from sluicegate.postgres import PostgresAccess
from sluicegate.testing import embedded_postgres as start_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

LONG = 60.0
"""Seconds that no test waits for."""
JOBS = 120
CUTS = 15


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that a test may kill."""
    with there_or_skip("postgres", start_postgres()) as server:
        yield server


@asynccontextmanager
async def own_queue(server: EmbeddedPostgres) -> AsyncIterator[Queue]:
    """A queue on the test's own server."""
    log = Log(server.dsn, fresh_name())
    await install_log(log)
    async with asyncio.timeout(WITHIN), queue(log) as made:
        yield made


@asynccontextmanager
async def frozen(server: EmbeddedPostgres) -> AsyncIterator[None]:
    """Freeze the server inside the block."""
    await asyncio.to_thread(server.pause)
    try:
        yield
    finally:
        await asyncio.to_thread(server.resume)


async def restart(server: EmbeddedPostgres, made: Queue) -> None:
    """Start a server that was killed."""
    await asyncio.to_thread(server.start)
    await made.reconnect()


def cut_answer(proxy: Proxy, word: str) -> None:
    """Cut the answer to the next statement that contains this word."""

    def look(kind: bytes, _: bytes) -> bool:
        if kind == b"E" and word in proxy.statements[-1]:
            proxy.cut_request = None
            proxy.cut_answer = "SELECT"
        return False

    proxy.cut_request = look


@pytest.mark.long
async def test_a_server_that_is_killed_costs_no_job_and_no_order(
    own_postgres: EmbeddedPostgres,
) -> None:
    """Q-T2, Q-T11: under load, and twice; the processes continue by themselves."""
    chance = random.Random(5)
    async with own_queue(own_postgres) as made:
        members = [await made.member(durable=True) for _ in range(2)]
        for member in members:
            await member.ready()
        for _ in range(2):
            await made.produce(JOBS, chance)
            await made.handled(but=JOBS // 2)
            await asyncio.to_thread(own_postgres.kill)
            await restart(own_postgres, made)
        await made.handled()
        await stop(*members)
        await made.assert_exact()


async def test_a_server_that_is_frozen_costs_no_job_and_no_order(
    own_postgres: EmbeddedPostgres,
) -> None:
    """Q-T2, Q-T11: for longer than the leases, under load; the consumer names the trouble
    meanwhile.
    """
    async with own_queue(own_postgres) as made, running(made.log, lease=LEASE) as here:
        places = await made.enqueue("k", 1, 2, 3)
        await here.until(lambda: len({*here.ended}) == 3)
        here.gate.clear()
        places += await made.enqueue("k", 4, 5)
        places += await made.enqueue("l", 6)
        await here.until(lambda: len({place for place, _ in here.began}) == 5)
        async with frozen(own_postgres):
            await here.trouble("failed (UnavailableError: no ")
            here.gate.set()
            await here.until(lambda: len({*here.ended}) >= 5)
            assert here.source.trouble is not None
        await made.handled()
        await here.recovered()
        of_key = [place for place, _ in here.began if place in places[:5]]
        assert sorted({*here.ended}) == sorted(places)
        assert [*dict.fromkeys(of_key)] == places[:5]


async def test_a_consumer_without_jobs_names_a_frozen_server(
    own_postgres: EmbeddedPostgres,
) -> None:
    """Q-T2: even if it has no lease to extend."""
    async with own_queue(own_postgres) as made, running(made.log, lease=LEASE) as here:
        await made.enqueue("k", 1)
        await here.until(lambda: len({*here.ended}) == 1)
        await made.handled()
        assert await made.ask("SELECT count(*) FROM {schema}.lane") == 0
        async with frozen(own_postgres):
            await here.trouble("failed (UnavailableError: no ")
        await here.recovered()
        await made.enqueue("k", 2)
        await here.until(lambda: len({*here.ended}) == 2)


async def test_a_consumer_names_a_server_that_is_down(own_postgres: EmbeddedPostgres) -> None:
    """Q-T2: when the server is back it continues, with the jobs of its lost leases."""
    async with own_queue(own_postgres) as made, running(made.log, lease=LEASE) as here:
        here.gate.clear()
        places = await made.enqueue("k", 1, 2)
        await here.until(lambda: len(here.began) == 1)
        await asyncio.to_thread(own_postgres.kill)
        await here.trouble("; it will be repeated")
        here.gate.set()
        await restart(own_postgres, made)
        await here.recovered()
        await made.handled()
        assert [*dict.fromkeys(here.ended)] == places


async def test_a_claim_whose_answer_is_lost_comes_again_after_its_lease(log: Log) -> None:
    """Q-T2, Q-T12: the leases are taken, and no process knows them."""
    async with (
        asyncio.timeout(WITHIN),
        queue(log) as made,
        proxied(log.dsn) as (proxy, dsn),
        running(log, dsn, lease=LONG, poll=LONG) as here,
    ):
        (warm,) = await made.enqueue("k", 1)
        await made.notify()
        await here.until(lambda: here.ended == [warm])
        await made.until("SELECT count(*) FROM {schema}.job")
        places = await made.enqueue("k", 2, 3)
        cut_answer(proxy, "claim_jobs")
        await made.notify()
        await here.trouble("claiming jobs failed")
        assert proxy.cuts == 1
        here.consumer.stop()
        await here.run
        until = f"UPDATE {log.sql}.lane SET lease_until = clock_timestamp() + interval '0.3 s'"
        assert await made.con.execute(f"{until} WHERE lease IS NOT NULL") == "UPDATE 1"
        lane = await made.lane("k")
        async with running(log) as other:
            await other.until(lambda: len(other.ended) == 2)
            now = await made.con.fetchval("SELECT clock_timestamp()")
        assert now >= lane["lease_until"]
        assert other.began == [(places[0], 2), (places[1], 1)]
        assert here.ended == [warm]


@pytest.mark.parametrize("is_last", [True, False])
async def test_a_settle_whose_answer_is_lost_repeats_no_job(log: Log, is_last: bool) -> None:
    """Q-T13: it is sent again, and the queue answers `lost` for the lease that it has ended."""
    async with (
        asyncio.timeout(WITHIN),
        queue(log) as made,
        proxied(log.dsn) as (proxy, dsn),
        running(log, dsn, lease=LONG, poll=LONG, per_key=2) as here,
    ):
        (warm,) = await made.enqueue("k", 1)
        await made.notify()
        await here.until(lambda: here.ended == [warm])
        await made.until("SELECT count(*) FROM {schema}.job")
        here.gate.clear()
        places = await made.enqueue("k", 2) if is_last else await made.enqueue("k", 2, 3)
        await made.notify()
        await here.until(lambda: len(here.began) == 2)
        cut_answer(proxy, "settle_jobs")
        here.gate.set()
        await made.until("SELECT count(*) FROM {schema}.job")
        places += await made.enqueue("k", 4)
        await made.notify()
        await here.until(lambda: len(here.ended) == 1 + len(places))
        await made.until("SELECT count(*) FROM {schema}.job")
        assert proxy.cuts == 1
        assert here.began == [(place, 1) for place in (warm, *places)]
        assert await made.ask("SELECT count(*) FROM {schema}.lane") == 0


async def test_a_settle_that_is_never_answered_is_sent_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q-T13: after the duration of a lease, as with a dead connection that is not closed."""
    async with (
        asyncio.timeout(WITHIN),
        queue(log) as made,
        proxied(log.dsn) as (proxy, dsn),
        running(log, dsn, lease=3 * LEASE, close_timeout=0.2) as here,
    ):
        silent = asyncio.Event()
        monkeypatch.setattr(proxy, "_cut", lambda _: silent.set())
        here.gate.clear()
        places = await made.enqueue("k", 1)
        await here.until(lambda: len(here.began) == 1)
        cut_answer(proxy, "settle_jobs")
        here.gate.set()
        await silent.wait()
        places += await made.enqueue("k", 2)
        await here.until(lambda: here.ended == places)
        await made.handled()
        assert here.began == [(place, 1) for place in places]


async def test_a_source_that_ends_looks_again_after_a_lost_connection(log: Log) -> None:
    """Q-T2: the query for ready jobs has no answer at first."""
    async with (
        asyncio.timeout(WITHIN),
        queue(log) as made,
        proxied(log.dsn) as (proxy, dsn),
    ):
        (place,) = await made.enqueue("k", 1)
        cut_answer(proxy, "SELECT EXISTS (SELECT FROM")
        async with running(log, dsn, ends=True) as here:
            await here.run
        assert (here.ended, proxy.cuts) == ([place], 1)


async def test_sessions_that_are_terminated_cost_no_job_and_no_order(log: Log) -> None:
    """Q-T2, Q-T11: repeatedly, under load."""
    chance = random.Random(7)
    async with asyncio.timeout(WITHIN), queue(log) as made:
        named = {"server_settings": {"application_name": "terminated"}}
        access = PostgresAccess(log.dsn, connect_options=named)
        async with running(log, access, lease=LEASE) as here:
            for _ in range(CUTS):
                await made.produce(JOBS // CUTS, chance)
                await made.handled(but=JOBS // CUTS // 2)
                await made.con.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'terminated'"
                )
            await made.handled()
            await here.recovered()
        assert {*here.ended} == {job.place for job in made.sent}
        assert_in_order(made, here)


def assert_in_order(made: Queue, here: Running) -> None:
    """Check that the jobs of each key began in order, unless their enqueues overlapped."""
    first = [*dict.fromkeys(place for place, _ in here.began)]
    jobs = {job.place: job for job in made.sent}
    for key in {job.key for job in made.sent} - {None}:
        mine = [jobs[place] for place in first if jobs[place].key == key]
        for number, job in enumerate(mine):
            assert all(job.began < later.ended for later in mine[number + 1 :])
