"""A subscription to a stream log, compared with those of peers.

Every server has its default durability: a commit waits for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from sluicegate.consumer import Commits

from ...destination import installed, postgres_server
from ...harness import US_PER_ITEM, Case, Contender, Target
from ...postgres.stream_logs import (
    BATCH,
    JSON,
    depeche_store,
    eventsourcing_recorder,
    read_depeche,
    read_eventsourcing,
    stored_event,
)
from ...stopwatch import Stopwatch, Took
from .streams import DEPECHE, EVENTSOURCING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STREAMS = 32
LOAD = """INSERT INTO sluicegate.message (stream, version, type, data)
SELECT 'order-' || g % {streams}, g / {streams}, 'Placed', '{data}'
FROM generate_series(0, {count} - 1) AS g"""
LEASES = "Consumer, positions in leases"
EXACTLY_ONCE = "flow.transaction, a row each"
DEPECHE_WHOLE = "depeche_db with its projector"


async def _load(dsn: str, count: int) -> None:
    import asyncpg

    from sluicegate.postgres import install_streams

    await install_streams(dsn)
    connection = await asyncpg.connect(dsn)
    await connection.execute(LOAD.format(count=count, streams=STREAMS, data=JSON))
    await connection.execute("CREATE TABLE handled (stream text, position bigint)")
    await connection.execute("VACUUM ANALYZE sluicegate.message")
    await connection.close()


async def _handled(dsn: str, count: int) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    found = await connection.fetchval("SELECT count(DISTINCT position) FROM handled")
    assert found == count, f"{found} of {count}"
    await connection.execute("TRUNCATE handled")
    await connection.close()


def _exactly_once(dsn: str, count: int) -> Took:
    from sluicegate import flow
    from sluicegate.postgres import PostgresSink, PostgresStreamSource

    async def turn() -> Took:
        source = PostgresStreamSource(dsn, subscription=f"x{uuid.uuid4().hex}", ends=True)
        sink = PostgresSink(dsn, table="handled", columns=("stream", "position"))
        watch = Stopwatch()
        await flow.transaction(
            source,
            sink,
            lambda message: {"stream": message.key, "position": message.offset},
            name="benchmark",
            commits=Commits(after=BATCH),
        ).run()
        took = watch.read()
        await _handled(dsn, count)
        return took

    return asyncio.run(turn())


def _leases(dsn: str, count: int) -> Took:
    from sluicegate import Consumer
    from sluicegate.postgres import PostgresStreamSource

    seen = 0

    async def handle(message: Any) -> None:
        nonlocal seen
        seen += 1

    async def turn() -> Took:
        source = PostgresStreamSource(dsn, subscription=f"x{uuid.uuid4().hex}", ends=True)
        watch = Stopwatch()
        await Consumer(source, name="benchmark").run(handle)
        took = watch.read()
        assert seen == count, f"{seen} of {count}"
        return took

    return asyncio.run(turn())


@contextlib.contextmanager
def prepare_subscription(count: int) -> Iterator[Sequence[Contender]]:
    with postgres_server() as dsn:
        asyncio.run(_load(dsn, count))
        contenders = [
            Contender(EXACTLY_ONCE, lambda: _exactly_once(dsn, count), ours=True),
            Contender(LEASES, lambda: _leases(dsn, count), ours=True),
        ]
        if installed("eventsourcing", "psycopg"):
            from eventsourcing.postgres import PostgresTrackingRecorder

            recorder = eventsourcing_recorder(dsn, "read_events", 2)
            tracking = PostgresTrackingRecorder(recorder.datastore, tracking_table_name="tracked")
            tracking.create_table()
            streams = [uuid.uuid4() for _ in range(STREAMS)]
            recorder.insert_events(
                [stored_event(streams[n % STREAMS], n // STREAMS) for n in range(count)]
            )
            contenders.append(
                Contender(
                    EVENTSOURCING,
                    lambda: read_eventsourcing(recorder, tracking, count),
                    items=count,
                )
            )
        if installed("depeche_db", "psycopg", "sqlalchemy"):
            store, message = depeche_store(dsn, "readable")
            for n in range(count):
                store.write(stream=f"order-{n % STREAMS}", message=message())
            for name, whole in ((DEPECHE, False), (DEPECHE_WHOLE, True)):
                contenders.append(
                    Contender(
                        name,
                        partial(read_depeche, store, message, count, whole=whole),
                        items=count,
                    )
                )
        yield contenders


CASE = Case(
    name="subscriptions",
    title="Messages of a log through a subscription, batches of 100",
    prepare=prepare_subscription,
    items=8_000,
    quick_items=2_000,
    unit=US_PER_ITEM,
    peers=(EVENTSOURCING, DEPECHE, DEPECHE_WHOLE),
    targets=tuple(
        Target(ours, peer, 5.0)
        for ours in (EXACTLY_ONCE, LEASES)
        for peer in (EVENTSOURCING, DEPECHE)
    ),
)
