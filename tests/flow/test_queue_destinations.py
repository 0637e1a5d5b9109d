"""Destinations that cannot settle the jobs of a queue, and arguments that the queue already
decides.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from queue_flows import LONG, TABLES, FlowQueue, Kind, flow_queue, running, with_kinds
from tests.kafka.source.storm_help import log_lines
from tests.postgres.streams.log_help import Log, install_log

from sluicegate import Backoff, Batcher, ConfigError, RetryPolicy, flow
from sluicegate.consumer import Poison
from sluicegate.kafka import KafkaSink
from sluicegate.postgres import PostgresEffects, PostgresQueueSource, PostgresSink
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate.testing import EmbeddedPostgres

NOWHERE = "postgresql://nowhere/none"


def source() -> PostgresQueueSource:
    return PostgresQueueSource(NOWHERE, queue="q")


def table() -> PostgresSink:
    return PostgresSink(NOWHERE, table="t", columns=("n",))


@pytest.mark.parametrize("sink", [MemorySink(), KafkaSink("t", bootstrap="nowhere:1")], ids=repr)
def test_a_destination_elsewhere_is_refused_at_construction(sink: Any) -> None:
    """The error states the rule and the alternative."""
    rule = "transactions of its own PostgreSQL; use PostgresSink or PostgresEffects there, or flow.pipe"
    with pytest.raises(ConfigError, match=rule):
        flow.transaction(source(), sink)


@pytest.mark.parametrize("strategy", ["skip", "block", "block_and_dead_letter", "park_key", "drop"])
def test_what_becomes_of_a_job_that_cannot_be_handled_is_the_queues_own(strategy: Any) -> None:
    """Q9: the error explains it and names the argument."""
    with pytest.raises(ConfigError, match=f"poison='{strategy}': is decided by this source"):
        flow.transaction(source(), table(), poison=strategy)
    with pytest.raises(ConfigError, match=f"poison='{strategy}': is decided by this source"):
        flow.pipe(source(), Batcher(table()), poison=strategy)


def test_dead_letters_are_the_queues_own() -> None:
    """Q9."""
    letters = MemorySink[Any]()
    with pytest.raises(ConfigError, match=r"dead_letters=.*is decided by this source"):
        flow.transaction(source(), table(), poison=Poison(dead_letters=letters))
    with pytest.raises(ConfigError, match=r"dead_letters=.*is decided by this source"):
        flow.pipe(source(), Batcher(table()), poison=Poison(dead_letters=letters))


@asynccontextmanager
async def another_database(made: FlowQueue, what: str) -> AsyncIterator[Log]:
    """A database with a table of the same name, and the given part of the queue."""
    name = f"other_{made.log.schema}"
    await made.con.execute(f"DROP DATABASE IF EXISTS {name}")
    await made.con.execute(f"CREATE DATABASE {name}")
    base, _, tail = made.log.dsn.rpartition("/")
    log = Log(f"{base}/{name}{tail[tail.find('?') :] if '?' in tail else ''}", made.log.schema)
    con = await asyncpg.connect(log.dsn)
    try:
        if what == "nothing":
            await con.execute(f"CREATE SCHEMA {log.sql}")
        else:
            await install_log(log)
            await con.execute(f"INSERT INTO {log.sql}.queue (name) VALUES ('q')")
            await con.execute(
                f"INSERT INTO {log.sql}.job (queue, key, payload) VALUES "
                "('q', 'k', '1'), ('q', NULL, '1')"
            )
        await con.execute(TABLES.format(schema=log.sql))
        yield log
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.effect") == 0
        if what == "jobs":
            assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.job") == 2
    finally:
        await con.close()
        await made.con.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.usefixtures("real_clock")
@pytest.mark.parametrize(
    ("kind", "what", "told"),
    with_kinds(
        ("nothing", "refuses the queue q: UndefinedTableError"),
        ("jobs", "or the sink is in another database"),
    ),
)
async def test_another_database_as_the_destination_costs_no_job_and_has_no_row(
    embedded_postgres: EmbeddedPostgres,
    caplog: pytest.LogCaptureFixture,
    kind: Kind,
    what: str,
    told: str,
) -> None:
    """Q-T13: every transaction is refused, even if the same queue is installed there."""
    caplog.set_level(logging.DEBUG, "sluicegate.consumer")
    async with (
        flow_queue(embedded_postgres.dsn) as made,
        another_database(made, what) as other,
        log_lines() as log,
    ):
        places = [*await made.enqueue("k", "a"), *await made.enqueue(None, "b")]
        sink = made.sink(other.dsn) if kind == "rows" else PostgresEffects(other.dsn)
        source = made.source(back_after=2 * LONG)
        retry = RetryPolicy(backoff=Backoff(base=LONG, longest=LONG, jitter="none"))
        pipe = made.flow(kind, sink=sink, source=source, retry=retry)
        async with running(pipe):
            for place in places:
                await log.wait(rf"@{place} failed \(attempt 1", logging.DEBUG)
            assert str(pipe.explain()).count(told) == len(places)
        assert await made.waiting() == places
        assert await made.places() == await made.letters() == []
        assert await made.ask("SELECT count(*) FROM {schema}.lane WHERE lease IS NOT NULL") == 0
