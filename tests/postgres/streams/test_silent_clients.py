"""Every store, lock, monitor, writer and command for PostgreSQL, whose connections become silent at
each of its requests in turn while new ones work: each call is bounded, and succeeds again.

White box: shorter limits of each client.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.cli.dlq_help import NOON, record
from tests.postgres.streams.silent_proxy import silent_proxy

from sluicegate import RowBatch, Timeout, UnavailableError, UnknownOutcomeError, send, stack
from sluicegate._core.positions import PositionUnit
from sluicegate._core.runtime.threads import close_within
from sluicegate._core.subscriptions import SubscriptionStart, slot_lock
from sluicegate.cli import main
from sluicegate.consumer import Move, ParkedRecord, Position, TopicPartition
from sluicegate.errors import TransactionLost
from sluicegate.postgres import (
    PostgresAccess,
    PostgresAdvisoryLocks,
    PostgresEffects,
    PostgresParkStore,
    PostgresQueueSink,
    PostgresSink,
    PostgresStreamSink,
    PostgresSubscriptions,
    QueueAdmin,
    QueueMonitor,
    StreamLog,
    StreamMonitor,
    SubscriptionAdmin,
    check_streams,
    install_streams,
)
from sluicegate.postgres.client import access, answers, connections
from sluicegate.postgres.commands import messages
from sluicegate.postgres.letters import store as connection
from sluicegate.postgres.schema import administration
from sluicegate.sinks import DeadLetterRecord

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock

SOON = 0.3
"""The limit of every wait in these tests, in seconds."""
SLACK = 4.0
"""Seconds that a loaded machine may add; a close without a limit takes 5."""
BAD = 13
"""A number that the server refuses in jobs and messages."""
LOCK = slot_lock("s", 7)
P7 = TopicPartition("t", 7)


class Client(NamedTuple):
    """How a client is opened, and calls that can be repeated."""

    opened: Callable[[Log, str], AbstractAsyncContextManager[Any]]
    calls: Sequence[Callable[[Any], Awaitable[object]]] = ()


def _client(kind: Any, *calls: Callable[[Any], Awaitable[object]], **options: Any) -> Client:
    def opened(log: Log, dsn: str) -> Any:
        access = PostgresAccess(dsn, close_timeout=SOON, answer_timeout=SOON)
        return kind(access, schema=log.schema, **options)

    return Client(opened, calls)


def _sink(made: Callable[[Log, str], Any], *items: object) -> Client:
    """A sink as in a stack: `Timeout` limits its writes."""

    @asynccontextmanager
    async def opened(log: Log, dsn: str) -> AsyncGenerator[Any]:
        async with stack(made(log, dsn), Timeout(SOON)) as sink:  # type: ignore[attr-defined]
            yield sink

    async def write(sink: Any) -> None:
        errors = await send(sink, RowBatch(items))
        if 0 in errors:  # only the first item can be written
            raise errors[0]

    return Client(opened, [write, write])


async def _in_turn(sink: Any) -> None:
    """A transaction with a position; its own writes have the limit of the caller."""
    claimed = await sink.claim_positions("g", [P7])
    at = claimed[P7].offset + 1 if P7 in claimed else 1
    async with sink.transaction(PositionUnit("g", P7, Position(at))):
        pass
    await sink.read_positions("g", [P7])
    await sink.store_positions("g", {P7: Position(at + 1)})


@asynccontextmanager
async def _notifier(log: Log, dsn: str) -> AsyncGenerator[Any]:
    async with StreamLog(log.schema).notifier(dsn) as notifier:
        yield notifier


async def _notified(notifier: Any) -> None:
    notifier.appended()


@asynccontextmanager
async def _nothing(log: Log, dsn: str) -> AsyncGenerator[tuple[Log, str]]:
    yield log, dsn


def _command(*words: str) -> Client:
    """A command, in a process of its own but for the thread."""

    async def run(given: tuple[Log, str]) -> None:
        log, dsn = given
        own = [] if words[0] == "dlq" else ["--schema", log.schema]
        line = [each.replace("DSN", dsn) for each in words]
        if await asyncio.to_thread(main, [*line, *own]):
            raise UnavailableError("it has failed")

    return Client(_nothing, [run])


PARKED = ParkedRecord(
    topic="t", partition=1, offset=2, key=b"k", value=b"v", reason="r", parked_at=NOON
)
CLIENTS: dict[str, Client] = {
    "PostgresParkStore": _client(
        PostgresParkStore,
        lambda each: each.park("g", "k", [PARKED]),
        lambda each: each.keys("g"),
        lambda each: each.first("g", "k", 1),
        lambda each: each.remove("g", "k", [PARKED]),
        lambda each: each.counts("g"),
    ),
    "PostgresSubscriptions": _client(
        PostgresSubscriptions,
        lambda each: each.initialize("t", SubscriptionStart({7: 0}, selection="{}")),
        lambda each: each.read("t"),
        lambda each: each.lock([slot_lock("t", 7)]),
        lambda each: each.keep([slot_lock("t", 7)]),
        lambda each: each.store("t", {7: Move(Position(0), Position(0))}),
        lambda each: each.unlock([slot_lock("t", 7)]),
        lambda each: each.members("t"),
    ),
    "PostgresAdvisoryLocks": _client(
        PostgresAdvisoryLocks,
        lambda each: each.lock([LOCK]),
        lambda each: each.keep([LOCK]),
        lambda each: each.unlock([LOCK]),
        keep_every=SOON,
    ),
    "SubscriptionAdmin": _client(
        SubscriptionAdmin,
        lambda each: each.lag(),
        lambda each: each.explain("s"),
        lambda each: each.pause("s", [7]),
        lambda each: each.resume("s", [7]),
        lambda each: each.reset("s", "beginning"),
    ),
    "QueueAdmin": _client(
        QueueAdmin,
        lambda each: each.create("r", max_attempts=3),
        lambda each: each.alter("r", max_attempts=3),
        lambda each: each.queues(),
        lambda each: each.lag(),
        lambda each: each.explain("q"),
        lambda each: each.pause("q"),
        lambda each: each.resume("q"),
    ),
    "StreamMonitor": _client(StreamMonitor, lambda each: each.poll(), every=600),
    "QueueMonitor": _client(QueueMonitor, lambda each: each.poll(), every=600),
    "PostgresSink": _sink(
        lambda log, dsn: PostgresSink(
            PostgresAccess(dsn, answer_timeout=SOON, close_timeout=SOON),
            table="rows",
            schema=log.schema,
            columns=["n"],
        ),
        (1,),
        ("no number",),
    ),
    "PostgresQueueSink": _sink(
        lambda log, dsn: PostgresQueueSink(
            PostgresAccess(dsn, close_timeout=SOON),
            queue="q",
            schema=log.schema,
            key=lambda n: f"k{n}",
        ),
        {"n": 1},
        {"n": BAD},
    ),
    "PostgresStreamSink": _sink(
        lambda log, dsn: PostgresStreamSink(
            PostgresAccess(dsn, close_timeout=SOON),
            schema=log.schema,
            stream=lambda n: f"s-{n['n']}",
            type=lambda _: "t",
        ),
        {"n": 1},
        {"n": BAD},
    ),
    "PostgresSink.transaction": _client(
        PostgresSink, _in_turn, table="rows", columns=["n"], positions="positions"
    ),
    "PostgresEffects.transaction": Client(
        lambda log, dsn: PostgresEffects(
            PostgresAccess(dsn, answer_timeout=SOON, close_timeout=SOON), schema=log.schema
        ),
        [_in_turn],
    ),
    "StreamLog.notifier": Client(_notifier, [_notified]),
    "check_streams": Client(_nothing, [lambda to: check_streams(to[1], schema=to[0].schema)]),
    "install_streams": Client(_nothing, [lambda to: install_streams(to[1], schema=to[0].schema)]),
    "queue list": _command("queue", "list", "DSN"),
    "queue lag": _command("queue", "lag", "DSN"),
    "queue explain": _command("queue", "explain", "DSN", "q"),
    "queue retain": _command("queue", "retain", "DSN", "q"),
    "queue purge": _command("queue", "purge", "DSN", "q", "waiting", "--yes"),
    "stream lag": _command("stream", "lag", "DSN"),
    "stream explain": _command("stream", "explain", "DSN", "s"),
    "stream reset": _command("stream", "reset", "DSN", "s", "--to", "beginning", "--yes"),
    "stream delete": _command("stream", "delete", "DSN", "--stream", "s-9", "--yes"),
    "pg check": _command("pg", "check", "DSN"),
    "dlq init": _command("dlq", "init", "DSN", "--table", "dead_letters"),
    "dlq list": _command("dlq", "list", "DSN"),
    "dlq show": _command("dlq", "show", "DSN", "key-0001"),
    "dlq purge": _command("dlq", "purge", "DSN", "--state", "all", "--yes"),
}
QUICK = ("PostgresParkStore", "PostgresAdvisoryLocks", "QueueAdmin", "QueueMonitor")
FAILURES = (UnavailableError, UnknownOutcomeError, TransactionLost)
MOST = 12
"""About the number of different times at which silence begins."""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the limits that have no argument."""
    monkeypatch.setattr(access, "_answer_timeout", lambda given, _: min(given, SOON))
    monkeypatch.setattr(connections, "close_within", lambda most: min(close_within(most), SOON))
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT", SOON)
    monkeypatch.setattr(answers, "ROLLBACK_WITHIN", SOON)
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", SOON)
    for name in ("ANSWER_TIMEOUT", "_MIGRATION_WITHIN", "_CLOSE_SECONDS"):
        monkeypatch.setattr(administration, name, SOON)
    monkeypatch.setattr(messages, "BATCH_WITHIN", SOON)


@asynccontextmanager
async def _prepared(log: Log) -> AsyncGenerator[None]:
    """A subscription, a queue, a table, and a dead letter."""
    async with log.connected() as con:
        await log.append(con, "s-1", 1)
        await con.execute(
            f"CREATE TABLE {log.sql}.rows (n int); DROP TABLE IF EXISTS dead_letters; "
            f"ALTER TABLE {log.sql}.job ADD CONSTRAINT good CHECK ((payload -> 'n')::int <> {BAD}); "
            f"ALTER TABLE {log.sql}.message ADD CONSTRAINT good CHECK ((data -> 'n')::int <> {BAD})"
        )
        async with QueueAdmin(log.dsn, schema=log.schema) as admin:
            await admin.create("q")
        async with PostgresSubscriptions(log.dsn, schema=log.schema) as state:
            await state.initialize(
                "s", SubscriptionStart(dict.fromkeys(range(256), 0), selection="{}")
            )
        await asyncio.to_thread(main, ["dlq", "init", log.dsn])
        letters = PostgresSink(
            log.dsn,
            table="dead_letters",
            columns=DeadLetterRecord.COLUMNS,
            row=DeadLetterRecord.as_row,
        )
        async with letters:
            assert await send(letters, RowBatch([record(1)])) == {}
        try:
            yield
        finally:
            await con.execute(
                f"DROP TABLE {log.sql}.rows, dead_letters; "
                f"ALTER TABLE {log.sql}.job DROP CONSTRAINT good; "
                f"ALTER TABLE {log.sql}.message DROP CONSTRAINT good; "
                f"DROP TABLE IF EXISTS {log.sql}.positions, {log.sql}.sluicegate_positions"
            )


class Insisting:
    """Makes calls again after an outage, and counts the failures."""

    def __init__(self) -> None:
        self.failures = 0

    async def on(self, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                async with asyncio.timeout(30):
                    return await call()
            except FAILURES:
                self.failures += 1
                assert self.failures < 30, "new connections answer"


async def _use(client: Client, log: Log, dsn: str) -> int:
    """Open it, make the calls, and close it; return the number of failures."""
    insisting = Insisting()
    async with AsyncExitStack() as stack:
        opened = await insisting.on(lambda: stack.enter_async_context(client.opened(log, dsn)))
        for call in client.calls:
            await insisting.on(partial(call, opened))
    return insisting.failures


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("name", QUICK)
async def test_an_open_client_continues_on_new_connections(
    log: Log, real_clock: LoopClock, name: str
) -> None:
    """Its calls fail in time until it has no silent connection any more."""
    client = CLIENTS[name]
    async with _prepared(log), silent_proxy(log.dsn) as proxy, AsyncExitStack() as stack:
        insisting = Insisting()
        opened = await insisting.on(
            lambda: stack.enter_async_context(client.opened(log, proxy.dsn))
        )
        for call in client.calls:
            await insisting.on(partial(call, opened))
        assert proxy.silence()
        began = real_clock.now()
        for call in client.calls:
            await insisting.on(partial(call, opened))
        assert real_clock.now() - began < (insisting.failures + 1) * SOON + SLACK


@pytest.mark.long
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("name", CLIENTS)
async def test_each_call_is_bounded_and_the_next_one_is_answered(
    log: Log, real_clock: LoopClock, name: str
) -> None:
    """Silence begins at each request of its whole life in turn, or at `MOST` of them."""
    async with _prepared(log), silent_proxy(log.dsn) as proxy:
        proxy.silence_after(1_000)
        await _use(CLIENTS[name], log, proxy.dsn)
        assert proxy.requests_left is not None
        requests = 1_000 - proxy.requests_left
        assert requests
        failed = 0
        for at in range(0, requests, 1 + requests // MOST):
            proxy.silence_after(at)
            began = real_clock.now()
            failures = await _use(CLIENTS[name], log, proxy.dsn)
            assert real_clock.now() - began < (failures + 1) * 2 * SOON + SLACK
            failed += failures
        assert failed or name == "StreamLog.notifier"
