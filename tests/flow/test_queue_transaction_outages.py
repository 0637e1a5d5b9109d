"""Lost leases, connections, answers and servers under flows from a queue into tables of the same
database: each job has one row, and none is lost.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from queue_flows import KINDS, LEASE, LONG, FlowQueue, Kind, flow_queue, running, with_kinds
from tests.kafka.source.storm_help import log_lines
from tests.postgres.access_help import access_from
from tests.postgres.sink.postgres_help import Proxy, proxied

from sluicegate.consumer import Commits
from sluicegate.postgres import PostgresAccess, PostgresEffects
from sluicegate.testing import embedded_postgres as start_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate import Message
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

JOBS = 40
CUT_EVERY = 61
HANGS = """
CREATE FUNCTION {schema}.hang() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER hang AFTER INSERT ON {schema}.effect DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION {schema}.hang()
"""
"""Makes a COMMIT wait while another session holds the advisory lock 4711."""


def sink(made: FlowQueue, kind: Kind, dsn: str | PostgresAccess, **options: Any) -> Any:
    """A destination reached through this connection."""
    access = access_from(dsn, options)
    return made.sink(access, **options) if kind == "rows" else PostgresEffects(access, **options)


@pytest.mark.parametrize(("kind", "key"), with_kinds("k", None))
async def test_a_lease_that_is_lost_before_the_commit_applies_nothing(
    embedded_postgres: EmbeddedPostgres, kind: Kind, key: str | None
) -> None:
    """Q-T13, Q-T2: the rows are written, but the settle is refused."""
    async with flow_queue(embedded_postgres.dsn) as made:
        places = await made.enqueue(key, "a", "b")
        began, gate = asyncio.Event(), asyncio.Event()

        async def hold(message: Message) -> None:
            if message.attempt == 1 and not gate.is_set():
                began.set()
                await gate.wait()

        source = made.source(ends=False, lease=LEASE)
        async with log_lines() as log, running(made.flow(kind, hold, source=source)):
            await began.wait()
            table = "lane" if key else "job"
            assert await made.con.fetchval(
                f"UPDATE {made.log.sql}.{table} SET owner = 'other', lease = lease + 1, "
                "lease_until = clock_timestamp() + '1 hour' WHERE lease IS NOT NULL RETURNING true"
            )
            gate.set()
            await log.wait("leases are lost")
            assert await made.places() == []
            assert await made.waiting() == places
            await made.con.execute(
                f"UPDATE {made.log.sql}.{table} SET lease_until = clock_timestamp()"
            )
            await made.handled()
        await made.assert_exact()


@pytest.mark.parametrize(("kind", "key"), with_kinds("k", None))
async def test_a_lane_that_is_locked_aborts_the_transaction_until_it_is_free(
    embedded_postgres: EmbeddedPostgres, kind: Kind, key: str | None
) -> None:
    """Effects never commit without the settle of their job, and other keys do not wait."""
    table = "lane" if key else "job"
    async with flow_queue(embedded_postgres.dsn) as made, made.log.connected() as operator:
        locked = await made.enqueue(key, "a", "b")
        others = await made.enqueue("other", "c", "d")
        held = operator.transaction()
        await held.start()

        async def lock(message: Message) -> None:
            if message.offset == locked[0] and message.attempt == 1:
                await operator.fetch(
                    f"SELECT FROM {made.log.sql}.{table} WHERE key IS NOT DISTINCT FROM $1 FOR UPDATE",
                    key,
                )

        async with running(made.flow(kind, lock, source=made.source(ends=False))):
            await made.until("SELECT count(*) - 2 FROM {schema}.job")
            assert await made.waiting() == locked
            assert sorted(await made.places()) == others
            await held.rollback()
            await made.handled()
        await made.assert_exact()


@pytest.mark.parametrize(
    ("kind", "key", "is_applied"),
    with_kinds(("k", True), ("k", False), (None, False), (None, True)),
)
async def test_a_lost_answer_to_the_commit_neither_repeats_nor_loses_a_job(
    embedded_postgres: EmbeddedPostgres, kind: Kind, key: str | None, is_applied: bool
) -> None:
    """Q-T13: another connection shows whether the jobs are settled."""
    async with (
        flow_queue(embedded_postgres.dsn) as made,
        proxied(embedded_postgres.dsn) as (proxy, dsn),
    ):
        places = await made.enqueue(key, "a", "b", "c")
        tries: list[int] = []

        async def cut(message: Message) -> None:
            tries.append(message.offset)
            if message.offset == places[1] and tries.count(places[1]) == 1:
                cut_commit(proxy, is_applied=is_applied)

        await made.flow(kind, cut, sink=sink(made, kind, dsn), commits=Commits(after=2)).run()
        assert proxy.cuts == 1
        assert (len(tries) == len(places)) is is_applied
        await made.assert_exact()


def cut_commit(proxy: Proxy, *, is_applied: bool) -> None:
    """Cut the connection at the next COMMIT, before or after it is applied."""
    if is_applied:
        proxy.cut_answer = "COMMIT"
    else:
        proxy.cut_request = lambda _, body: body.startswith(b"COMMIT")


@pytest.mark.parametrize(("kind", "fails_again"), with_kinds(False, True))
async def test_a_commit_that_nothing_is_known_of_repeats_no_job(
    embedded_postgres: EmbeddedPostgres, kind: Kind, fails_again: bool
) -> None:
    """Q-T13: the source is queried before the next attempt. If that fails, settled jobs stay
    settled.
    """
    async with (
        flow_queue(embedded_postgres.dsn, poison="skip") as made,
        proxied(embedded_postgres.dsn) as (proxy, dsn),
    ):
        places = await made.enqueue("k", "a", "b", "refused", "c")
        # the transaction settles its jobs, the query about it has no answer, the next one breaks
        cuts = [(b"settle_jobs", False), (b"settle_jobs", True), (b"INSERT INTO", fails_again)]

        async def cut(message: Message) -> None:
            if message.offset == places[1]:
                proxy.cut_answer = "COMMIT"
                proxy.cut_request = cut_in_turn

        def cut_in_turn(_: bytes, body: bytes) -> bool:
            if not cuts or cuts[0][0] not in body:
                return False
            asyncio.get_running_loop().call_soon(setattr, proxy, "cut_request", cut_in_turn)
            return cuts.pop(0)[1]

        await made.flow(kind, cut, sink=sink(made, kind, dsn)).run()
        assert proxy.cuts == 2 + fails_again
        assert await made.places() == [places[0], places[1], places[3]]
        assert await made.letters() == [places[2]]


@pytest.mark.parametrize("asks", ["sink", "source"])
async def test_a_commit_that_is_under_way_is_waited_for(
    embedded_postgres: EmbeddedPostgres, asks: str
) -> None:
    """Q-T13: its answer is lost; it is applied later, and no other transaction with it. A sink that
    cannot wait that long leaves the query to the source. A sink of rows has its deferred
    constraints checked before the COMMIT.
    """
    kind: Kind = "effects"
    async with (
        flow_queue(embedded_postgres.dsn) as made,
        proxied(embedded_postgres.dsn) as (proxy, dsn),
    ):
        await made.enqueue("k", "a", "b")
        await made.con.execute(HANGS.format(schema=made.log.sql))
        await made.con.execute("SELECT pg_advisory_lock(4711)")
        into = sink(made, kind, named(dsn, "sink"), close_timeout=LONG if asks == "sink" else 0.2)
        source = made.source(named(made.log.dsn, "source"), ends=False)
        async with running(made.flow(kind, sink=into, source=source)):
            await made.until_waits("advisory")
            await proxy.close()
            await made.until_waits("transactionid", asks)
            await made.con.execute("SELECT pg_advisory_unlock(4711)")
            await made.handled()
        await made.assert_exact()


def named(dsn: str, name: str) -> PostgresAccess:
    """Connections with this application name."""
    return PostgresAccess(dsn, connect_options={"server_settings": {"application_name": name}})


@pytest.mark.parametrize("kind", KINDS)
async def test_connections_that_are_cut_at_every_statement_cost_no_job(
    embedded_postgres: EmbeddedPostgres, kind: Kind
) -> None:
    """Q-T13, R6: each request of the source and of the sink in turn is the last one of its
    connection.
    """
    async with (
        flow_queue(embedded_postgres.dsn) as made,
        proxied(embedded_postgres.dsn) as (proxy, dsn),
    ):
        seen = 0

        def cut(_: bytes, __: bytes) -> bool:
            nonlocal seen
            seen += 1
            if is_cut := seen % CUT_EVERY == 0:
                asyncio.get_running_loop().call_soon(setattr, proxy, "cut_request", cut)
            return is_cut

        source = made.source(dsn, ends=False, lease=LEASE, per_key=2)
        pipe = made.flow(kind, sink=sink(made, kind, dsn), source=source)
        async with running(pipe):
            await pipe.wait_ready()
            proxy.cut_request = cut
            await made.produce(JOBS, random.Random(1))
            await made.handled()
            proxy.cut_request = None
        assert proxy.cuts > 3
        await made.assert_exact()


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that tests may kill; they leave it running."""
    with there_or_skip("postgres", start_postgres({"fsync": "off"})) as server:
        yield server


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_is_killed_costs_no_job_and_repeats_none(
    own_postgres: EmbeddedPostgres, kind: Kind
) -> None:
    """Q-T2, R6: during transactions; the flow recovers by itself."""
    async with flow_queue(own_postgres.dsn) as made:
        pipe = made.flow(kind, source=made.source(ends=False, lease=LEASE, per_key=2))
        async with running(pipe):
            await made.con.execute(f"BEGIN; LOCK TABLE {made.log.sql}.effect")
            await made.produce(JOBS, random.Random(2))
            await made.until_waits("relation")
            await asyncio.to_thread(own_postgres.kill)
            await asyncio.to_thread(own_postgres.start)
            await made.reconnect()
            await made.handled()
        await made.assert_exact()
