"""Connections to PostgreSQL that become silent while new ones work, as after a firewall has lost its
state: each wait for an answer has a bound, and the work continues on new connections.

White box: connections and the wait for notifications, without a source.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.postgres.streams.silent_proxy import silent_proxy

from sluicegate import Batcher, Consumer, Retry, RowBatch, Timeout, ToDeadLetter, flow, send
from sluicegate import stack as decorated
from sluicegate._core.clock import CountedSignal, wait_until
from sluicegate.consumer import Commits, Poison, PoisonError
from sluicegate.consumer.failures import dead_letters
from sluicegate.postgres import (
    PostgresAccess,
    PostgresAdvisoryLocks,
    PostgresEffects,
    PostgresParkStore,
    PostgresQueueSource,
    PostgresSink,
    PostgresState,
    PostgresStreamSource,
    PostgresSubscriptions,
    QueueAdmin,
)
from sluicegate.postgres.client import notifications as waking
from sluicegate.postgres.client.access import Access
from sluicegate.postgres.client.connections import Connections
from sluicegate.postgres.letters.table import COLUMNS
from sluicegate.sinks import DeadLetterRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.postgres.streams.log_help import Log

    from sluicegate import Message
    from sluicegate.batcher import LoopClock
    from sluicegate.consumer.jobs import EventContext

SOON = 0.25
"""The `answer_timeout` of these tests, in seconds."""
DRAIN = 0.3
SLACK = 2.5
"""Seconds that a loaded machine may add; a close that ignores the drain takes 5."""
COUNT = 5


class Handled:
    """The numbers of handled messages."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._more = asyncio.Condition()

    async def handle(self, message: Message) -> None:
        async with self._more:
            self.numbers.append(json.loads(message.value)["n"])
            self._more.notify_all()

    async def until(self, count: int) -> None:
        """Wait for this many different messages."""
        async with self._more:
            await self._more.wait_for(lambda: len({*self.numbers}) >= count)


async def _added(log: Log, kind: str, *numbers: int) -> None:
    async with log.connected() as con:
        if kind == "stream":
            await log.append(con, "s-1", *numbers)
            return
        for number in numbers:
            text = json.dumps({"n": number})
            query = f"INSERT INTO {log.sql}.job (queue, key, payload) VALUES ('q', 'k', $1)"
            await con.execute(query, text)


@asynccontextmanager
async def _source(kind: str, log: Log, dsn: str) -> AsyncIterator[Any]:
    options: dict[str, Any] = {"schema": log.schema, "poll": 0.02}
    access = PostgresAccess(dsn, answer_timeout=SOON)
    if kind == "stream":
        yield PostgresStreamSource(access, subscription="s", **options)
        return
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create("q")
    yield PostgresQueueSource(access, queue="q", **options)


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a_source_continues_on_new_connections_and_closes_in_time(
    log: Log, real_clock: LoopClock, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O-T10, B-T49: the outage is reported, and a drain ends within its time and one second."""
    handled = Handled()
    async with silent_proxy(log.dsn) as proxy, _source(kind, log, proxy.dsn) as source:
        consumer = Consumer(source, name="c", drain=DRAIN, commits=Commits(every=0.02))
        async with consumer:
            run = asyncio.create_task(consumer.run(handled.handle))
            await _added(log, kind, *range(COUNT))
            await handled.until(COUNT)
            assert proxy.silence()
            await _added(log, kind, *range(COUNT, 2 * COUNT))
            async with asyncio.timeout(60):
                await handled.until(2 * COUNT)
            await consumer.wait_ready()
            proxy.silence()
            began = real_clock.now()
            consumer.stop()
            await run
        assert real_clock.now() - began < DRAIN + 1 + SLACK
    assert "no answer from" in caplog.text


@asynccontextmanager
async def _connections(dsn: str) -> AsyncIterator[Connections]:
    access = PostgresAccess(dsn, answer_timeout=SOON, close_timeout=SOON)
    made = await Connections.to(Access.of(access))
    try:
        yield made
    finally:
        await made.close()


async def test_a_silent_connection_that_listens_is_replaced(
    log: Log, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source then polls at once, and hears again."""
    monkeypatch.setattr(waking, "PROBE_EVERY", 0.05)
    news, channel = CountedSignal(), "channel of a test"

    async with (
        asyncio.timeout(60),
        silent_proxy(log.dsn) as proxy,
        _connections(proxy.dsn) as connections,
        log.connected() as con,
    ):
        waker = waking.Waker("s", channel, connections, news, real_clock)
        run = asyncio.create_task(waker.run())

        async def heard(count: int) -> None:
            while news.count < count:
                await wait_until(real_clock, math.inf, news)

        for listening in (1, 3):
            await heard(listening)
            await con.execute(f'NOTIFY "{channel}"')
            await heard(listening + 1)
            assert proxy.silence()
        run.cancel()
        await asyncio.wait([run])


async def test_connections_have_keepalive(log: Log, real_clock: LoopClock) -> None:
    wanted = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
    async with (
        silent_proxy(log.dsn) as proxy,
        _connections(proxy.dsn) as connections,
        connections.opening() as con,
    ):
        transport: Any = con._transport  # type: ignore[attr-defined]
        found: socket.socket = transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = {name: getattr(socket, name) for name in wanted if hasattr(socket, name)}
        for name, option in options.items():
            assert found.getsockopt(socket.IPPROTO_TCP, option) == wanted[name], name


class Part(NamedTuple):
    """A consumer or a pipe with a part of it behind the proxy."""

    consumer: Any
    run: Callable[[], Awaitable[object]]
    counted: str
    """The query of its results."""


def _sink(log: Log, dsn: str, **options: Any) -> PostgresSink:
    given: dict[str, Any] = {
        "table": "rows",
        "schema": log.schema,
        "columns": ["n"],
        **options,
    }
    return PostgresSink(PostgresAccess(dsn, answer_timeout=SOON), **given)


def _number(message: Any) -> int:
    return int(json.loads(message.value)["n"])


async def _consumer(
    stack: AsyncExitStack, source: Any, handler: Any, counted: str, **options: Any
) -> Part:
    made = Consumer(source, name="c", drain=DRAIN, commits=Commits(every=0.02), **options)
    consumer = await stack.enter_async_context(made)
    return Part(consumer, lambda: consumer.run(handler), counted)


async def _state(stack: AsyncExitStack, log: Log, dsn: str) -> Part:
    options: dict[str, Any] = {"positions": "positions", "schema": log.schema}
    state = await stack.enter_async_context(
        PostgresState(
            PostgresAccess(dsn, answer_timeout=4 * SOON, close_timeout=SOON),
            table="rows2",
            **options,
        )
    )
    consumer = await stack.enter_async_context(
        Consumer(
            state.attach(_stream(log)),
            name="c",
            drain=DRAIN,
            commits=Commits(every=0.02),
            ordering="partition",
        )
    )

    async def handle(context: EventContext) -> None:
        context.store.put(str(_number(context.message)), 1)

    return Part(
        consumer, lambda: consumer.run_events(handle, state=state), "rows2 WHERE partition >= 0"
    )


async def _letters(stack: AsyncExitStack, log: Log, dsn: str) -> Part:
    columns, row = DeadLetterRecord.COLUMNS, DeadLetterRecord.as_row
    letters = _sink(log, dsn, table="dead_letters", columns=columns, row=row, on_conflict="ignore")

    async def handle(_: Message) -> Any:
        return ToDeadLetter("no")

    return await _consumer(
        stack, _stream(log), handle, "dead_letters", poison=Poison(dead_letters=letters)
    )


async def _parked(stack: AsyncExitStack, log: Log, dsn: str) -> Part:
    store = PostgresParkStore(PostgresAccess(dsn, answer_timeout=SOON), schema=log.schema)

    async def handle(_: Message) -> None:
        raise PoisonError("no")

    return await _consumer(stack, _stream(log), handle, "parked", poison=Poison(parked=store))


async def _handled(stack: AsyncExitStack, log: Log, source: Any) -> Part:
    sink = await stack.enter_async_context(_sink(log, log.dsn))

    async def handle(message: Message) -> None:
        assert await send(sink, RowBatch([(_number(message),)])) == {}

    return await _consumer(stack, source, handle, "rows")


async def _advisory(stack: AsyncExitStack, log: Log, dsn: str) -> Part:
    state = PostgresSubscriptions(log.dsn, schema=log.schema)
    locks = PostgresAdvisoryLocks(dsn, schema=log.schema, keep_every=SOON)
    return await _handled(stack, log, _stream(log, state=state, locks=locks))


async def _leases(stack: AsyncExitStack, log: Log, dsn: str) -> Part:
    leases = PostgresSubscriptions(dsn, schema=log.schema, lease=2 * SOON)
    return await _handled(stack, log, _stream(log, state=leases, locks=leases))


async def _rows(stack: AsyncExitStack, log: Log, dsn: str) -> Part:
    del stack
    pipe = flow.transaction(_stream(log), _sink(log, dsn), lambda m: [(_number(m),)], drain=DRAIN)
    return Part(pipe, pipe.run, "rows")


async def _effects(stack: AsyncExitStack, log: Log, dsn: str, source: Any = None) -> Part:
    del stack

    async def handle(message: Message) -> None:
        query = f"INSERT INTO {log.sql}.rows VALUES ($1)"
        await message.connection.execute(query, _number(message))

    effects = PostgresEffects(PostgresAccess(dsn, answer_timeout=SOON), schema=log.schema)
    pipe = flow.transaction(source or _stream(log), effects, handle, drain=DRAIN)
    return Part(pipe, pipe.run, "rows")


async def _jobs(stack: AsyncExitStack, log: Log, dsn: str) -> Part:
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create("q")
    source = PostgresQueueSource(log.dsn, queue="q", schema=log.schema, poll=0.02)
    return await _effects(stack, log, dsn, source)


async def _pipe(stack: AsyncExitStack, log: Log, dsn: str) -> Part:
    del stack
    batcher = Batcher(decorated(_sink(log, dsn), Retry(), Timeout(4 * SOON)), key=lambda _: "k")
    pipe = flow.pipe(_stream(log), batcher, transform=lambda m: [(_number(m),)], drain=DRAIN)
    return Part(pipe, pipe.run, "rows")


def _stream(log: Log, **options: Any) -> PostgresStreamSource:
    given: dict[str, Any] = {"subscription": "s", "schema": log.schema, "poll": 0.02, **options}
    return PostgresStreamSource(log.dsn, **given)


REPORTED = {
    "PostgresState",
    "dead letters",
    "PostgresParkStore",
    "PostgresSubscriptions",
    "flow.pipe",
}
"""The others recover at their next try."""
TOLD = re.compile(r"no answer from|not accepted within|was cut off after|locks were lost|is lost")
PARTS = {
    "PostgresState": _state,
    "dead letters": _letters,
    "PostgresParkStore": _parked,
    "PostgresAdvisoryLocks": _advisory,
    "PostgresSubscriptions": _leases,
    "flow.transaction, rows": _rows,
    "flow.transaction, effects": _effects,
    "flow.transaction, jobs": _jobs,
    "flow.pipe": _pipe,
}


@pytest.mark.long
@pytest.mark.parametrize("name", PARTS)
async def test_a_part_of_a_consumer_continues_and_closes_in_time(
    log: Log,
    real_clock: LoopClock,
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Judged by its table, which has each message once. The outage is reported."""
    caplog.set_level(logging.DEBUG, "sluicegate")
    monkeypatch.setattr(dead_letters, "WRITE_WITHIN", SOON)
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    async with silent_proxy(log.dsn) as proxy, log.connected() as con:
        await con.execute(
            f"CREATE TABLE {log.sql}.rows (n int); CREATE TABLE {log.sql}.dead_letters ({columns})"
        )
        try:
            async with AsyncExitStack() as stack:
                part = await PARTS[name](stack, log, proxy.dsn)
                run = asyncio.ensure_future(part.run())
                query = f"SELECT count(*) FROM {log.sql}.{part.counted}"
                told = ""
                for at in (0, COUNT):
                    added = range(at, at + COUNT)
                    await _added(log, "queue" if "jobs" in name else "stream", *added)
                    async with asyncio.timeout(60):
                        while await con.fetchval(query) != at + COUNT:
                            assert not run.done(), run
                            told += str(part.consumer.explain()) if at else ""
                            await real_clock.sleep(0.02)
                    assert proxy.silence() or at
                began = real_clock.now()
                part.consumer.stop()
                await run
            assert real_clock.now() - began < DRAIN + 1 + SLACK
            if name in REPORTED:
                assert TOLD.search(told + caplog.text)
        finally:
            await con.execute(
                f"DROP TABLE IF EXISTS {log.sql}.rows, {log.sql}.rows2, {log.sql}.dead_letters, "
                f"{log.sql}.positions, {log.sql}.sluicegate_positions"
            )
