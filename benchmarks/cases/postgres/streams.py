"""Appends to a stream log by 32 writers, compared with other ways and peers.

Every server has its default durability: a commit waits for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ...destination import installed, postgres_server
from ...harness import US_PER_ITEM, Case, Contender, Target
from ...postgres.stream_logs import DATA, JSON, depeche_store, eventsourcing_recorder, stored_event
from ...stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WRITERS = 32

OURS = "StreamLog.append"
UNMARKED = "the same without the mark"
MARKED = "INSERT, with the mark"
PLAIN = "INSERT, plain sequence"
ADVISORY = "INSERT, global advisory lock"
TABLE_LOCK = "INSERT, table lock"
EVENTSOURCING = "eventsourcing"
DEPECHE = "depeche_db"

INSERT = (
    "INSERT INTO plain.message (stream, version, type, data) VALUES ($1, 0, 'Placed', $2::jsonb)"
)
NO_MARK = """CREATE OR REPLACE FUNCTION plain.next_position() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT nextval('plain.position') $$"""


async def _install(dsn: str) -> None:
    import asyncpg

    from sluicegate.postgres import install_streams

    await install_streams(dsn)
    await install_streams(dsn, schema="plain")
    connection = await asyncpg.connect(dsn)
    await connection.execute(NO_MARK)
    await connection.close()


def _by_writers(dsn: str, count: int, append: Callable[[Any, str], Any]) -> Took:
    """Append `count` messages, each to a new stream and in its own transaction."""
    import asyncpg

    async def turn() -> Took:
        async with asyncpg.create_pool(dsn, min_size=WRITERS, max_size=WRITERS) as pool:
            await pool.execute("CHECKPOINT")

            async def write(connection: Any, turns: Iterator[int]) -> None:
                for _ in turns:
                    async with connection.transaction():
                        await append(connection, f"order-{uuid.uuid4()}")

            async with contextlib.AsyncExitStack() as stack:
                writers = [await stack.enter_async_context(pool.acquire()) for _ in range(WRITERS)]
                # statements are prepared and functions compiled once in a session
                await asyncio.gather(*(write(writer, iter(range(2))) for writer in writers))
                turns = iter(range(count))
                watch = Stopwatch()
                await asyncio.gather(*(write(writer, turns) for writer in writers))
                return watch.read()

    return asyncio.run(turn())


def _by_threads(count: int, append: Callable[[], object]) -> Took:
    share = count // WRITERS

    def write() -> None:
        for _ in range(share):
            append()

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(lambda _: append(), range(WRITERS)))  # opens the connections
        watch = Stopwatch()
        for done in [threads.submit(write) for _ in range(WRITERS)]:
            done.result()
        return watch.read()


@contextlib.contextmanager
def prepare_append(count: int) -> Iterator[Sequence[Contender]]:
    from sluicegate.postgres import NewMessage, StreamLog

    placed = NewMessage("Placed", DATA)
    log, unmarked = StreamLog(), StreamLog("plain")

    async def plain(connection: Any, stream: str) -> None:
        await connection.execute(INSERT, stream, JSON)

    async def marked(connection: Any, stream: str) -> None:
        await connection.execute(INSERT.replace("plain.", "sluicegate."), stream, JSON)

    async def advisory(connection: Any, stream: str) -> None:
        await connection.execute("SELECT pg_advisory_xact_lock(1)")
        await connection.execute(INSERT, stream, JSON)

    async def table_lock(connection: Any, stream: str) -> None:
        await connection.execute("LOCK TABLE plain.message IN EXCLUSIVE MODE")
        await connection.execute(INSERT, stream, JSON)

    few = max(count // 5, WRITERS) // WRITERS * WRITERS
    with postgres_server() as dsn:
        asyncio.run(_install(dsn))
        by = partial(_by_writers, dsn)
        contenders = [
            Contender(OURS, lambda: by(count, lambda c, s: log.append(c, s, placed)), ours=True),
            Contender(UNMARKED, lambda: by(count, lambda c, s: unmarked.append(c, s, placed))),
            Contender(MARKED, lambda: by(count, marked), ours=True),
            Contender(PLAIN, lambda: by(count, plain)),
            Contender(ADVISORY, lambda: by(few, advisory), items=few),
            Contender(TABLE_LOCK, lambda: by(few, table_lock), items=few),
        ]
        if installed("eventsourcing", "psycopg"):
            recorder = eventsourcing_recorder(dsn, "stored_events", WRITERS)
            contenders.append(
                Contender(
                    EVENTSOURCING,
                    lambda: _by_threads(
                        few, lambda: recorder.insert_events([stored_event(uuid.uuid4(), 1)])
                    ),
                    items=few,
                )
            )
        if installed("depeche_db", "psycopg", "sqlalchemy"):
            store, message = depeche_store(dsn, "appended")
            contenders.append(
                Contender(
                    DEPECHE,
                    lambda: _by_threads(
                        few, lambda: store.write(stream=f"order-{uuid.uuid4()}", message=message())
                    ),
                    items=few,
                )
            )
        yield contenders


CASE = Case(
    name="stream-appends",
    title="Messages appended to a log, one in a transaction, 32 writers",
    prepare=prepare_append,
    items=6_400,
    quick_items=320,
    unit=US_PER_ITEM,
    peers=(UNMARKED, PLAIN, ADVISORY, TABLE_LOCK, EVENTSOURCING, DEPECHE),
    targets=(
        Target(OURS, UNMARKED, 0.85),
        Target(OURS, PLAIN, 0.85),
        Target(MARKED, PLAIN, 0.85),
        Target(OURS, ADVISORY, 5.0),
    ),
)
