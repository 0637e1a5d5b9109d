"""State in PostgreSQL, stored in the transaction of the position."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest
from state_counting import Counting, expected, key_of
from state_help import state_tables

from sluicegate import ConfigError, Consumer, Nak, RetryPolicy
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Poison, Record
from sluicegate.consumer.jobs import Incomplete, Interjector

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from state_help import StateTables

    from sluicegate.consumer import DrainReport
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()

READING = "it reads the parked keys, or the state, of its partitions"


def log_of(count: int, first: int = 0) -> MemoryLog:
    """A log of this many records."""
    return MemoryLog([Record("t", 0, at, key_of(at), b"") for at in range(first, count)])


async def run(
    tables: StateTables,
    log: MemoryLog,
    handler: Callable[[EventContext], Any],
    *,
    jobs: Any = (),
    interjections: Any = (),
    state: dict[str, Any] | None = None,
    **options: Any,
) -> DrainReport:
    """Handle all records of a log."""
    settings: dict[str, Any] = {"commits": Commits(every=0.01), **options}
    async with (
        tables.state(**(state or {})) as opened,
        Consumer(
            opened.attach(MemorySource(log, ends=True)),
            ordering="partition",
            **settings,
        ) as consumer,
    ):
        return await consumer.run_events(
            handler, jobs=jobs, interjections=interjections, state=opened
        )


@pytest.mark.long
async def test_a_whole_log(embedded_postgres: EmbeddedPostgres) -> None:
    """consumer/G28: the state contains all events, with jobs and finalisers that share a key."""
    counting = Counting(0)
    async with state_tables(embedded_postgres.dsn) as tables:
        report = await run(tables, log_of(3000), counting.handle, jobs=[counting.jobs])
        assert report.complete
        assert await tables.stored() == (3000, expected(range(3000)))


async def test_the_next_run_continues(embedded_postgres: EmbeddedPostgres) -> None:
    """It reads the stored state, and no event twice."""
    seen: list[tuple[int, int]] = []

    async def handle(context: EventContext) -> None:
        before = context.store.get("n", 0)
        seen.append((context.message.offset, before))
        context.store.put("n", before + 1)

    async with state_tables(embedded_postgres.dsn) as tables:
        await run(tables, log_of(5), handle)
        await run(tables, log_of(9), handle)
        assert await tables.stored() == (9, {"n": 9})
    assert seen == [(at, at) for at in range(9)]


async def test_a_turn_that_fails_changes_nothing(embedded_postgres: EmbeddedPostgres) -> None:
    """Neither an exception nor a failure result does; the next attempt sees the state before it."""
    tries: dict[int, int] = {}

    async def handle(context: EventContext) -> object:
        offset = context.message.offset
        tries[offset] = tries.get(offset, 0) + 1
        context.store.put("n", context.store.get("n", 0) + 1)
        if offset % 3 == 1 and tries[offset] == 1:
            raise RuntimeError("not yet")
        if offset % 3 == 2 and tries[offset] == 1:
            return Nak(0.0)
        return None

    async with state_tables(embedded_postgres.dsn) as tables:
        await run(tables, log_of(9), handle)
        assert await tables.stored() == (9, {"n": 9})
    assert sum(tries.values()) == 15


@pytest.mark.parametrize("value", [object(), float("nan"), {1: b"x"}, "x" * (17 << 20)])
async def test_a_value_that_cannot_be_kept(embedded_postgres: EmbeddedPostgres, value: Any) -> None:
    """Its event fails: its other changes are undone, and the other events continue."""
    letters: list[Any] = []

    async def handle(context: EventContext) -> None:
        offset = context.message.offset
        context.store.put("n", context.store.get("n", 0) + 1)
        if offset == 2:
            context.store.put("bad", value)

    async with state_tables(embedded_postgres.dsn) as tables:
        await run(
            tables,
            log_of(5),
            handle,
            poison=Poison("skip", dead_letters=letters.extend),
            retry=RetryPolicy(attempts=1),
        )
        assert await tables.stored() == (5, {"n": 4})
    assert [letter.item["offset"] for letter in letters] == [2]


@pytest.mark.parametrize("key", ["a\0b", "\ud800", "é" * 513, 7])
async def test_a_key_that_cannot_be_kept(embedded_postgres: EmbeddedPostgres, key: Any) -> None:
    async def handle(context: EventContext) -> None:
        context.store.put("n", context.store.get("n", 0) + 1)
        if context.message.offset == 1:
            context.store.put(key, 1)

    async with state_tables(embedded_postgres.dsn) as tables:
        await run(tables, log_of(3), handle, poison="skip", retry=RetryPolicy(attempts=1))
        assert await tables.stored() == (3, {"n": 2})


async def test_odd_keys_and_values(embedded_postgres: EmbeddedPostgres) -> None:
    """Values are the same after a restart, up to the largest key."""
    values = {
        "": None,
        "é" * 512: 1e16,
        "'\"\\": "\0\ud800",
        "z": {"n": [True, 1.5, 10**30]},
        "\uffff\U0001f600": "x" * (9 << 20),
        "y": "x" * (9 << 20),
    }
    seen: list[Any] = []

    async def handle(context: EventContext) -> None:
        if context.message.offset == 0:
            for key, value in values.items():
                context.store.put(key, value)
            context.store.put("gone", 1)
        else:
            seen.append(dict(context.store.range()))
            context.store.delete("gone")

    async with state_tables(embedded_postgres.dsn) as tables:
        await run(tables, log_of(1), handle)
        await run(tables, log_of(2), handle)
        await run(tables, log_of(3), handle)
    assert seen == [{**values, "gone": 1}, values]
    assert [type(each["é" * 512]) for each in seen] == [float, float]


class Digits:
    """Numbers as text or bytes."""

    def __init__(self, column: Literal["text", "bytea"]) -> None:
        self.column: Literal["json", "text", "bytea"] = column

    def encode(self, value: int) -> str | bytes:
        return str(value) if self.column == "text" else str(value).encode()

    def decode(self, stored: str | bytes) -> int:
        assert isinstance(stored, str if self.column == "text" else bytes)
        return int(stored)


@pytest.mark.parametrize("column", ["text", "bytea"])
async def test_other_codecs(
    embedded_postgres: EmbeddedPostgres, column: Literal["text", "bytea"]
) -> None:
    """A table of another codec is refused."""
    async with state_tables(embedded_postgres.dsn) as tables:
        for count in (2, 5):
            await run(tables, log_of(count), _count, state={"codec": Digits(column)})
        value = await tables.con.fetchval(f'SELECT value FROM "{tables.table}"')
        assert value == ("5" if column == "text" else b"5")
        with pytest.raises(ConfigError, match="another shape"):
            async with tables.state():
                pass


class AsItIs:
    """Text values with any content."""

    column: Literal["json", "text", "bytea"] = "text"

    def encode(self, value: str) -> str:
        return value

    def decode(self, stored: Any) -> str:
        return str(stored)


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
async def test_a_text_that_the_column_does_not_take(
    embedded_postgres: EmbeddedPostgres, value: str
) -> None:
    """Its event fails; no commit does."""

    async def handle(context: EventContext) -> None:
        at = context.message.offset
        context.store.put(f"at/{at}", value if at == 1 else "ok")

    async with state_tables(embedded_postgres.dsn) as tables:
        options: dict[str, Any] = {"poison": "skip", "retry": RetryPolicy(attempts=1)}
        await run(tables, log_of(3), handle, state={"codec": AsItIs()}, **options)
        found = await tables.con.fetch(
            f'SELECT key, value FROM "{tables.table}" WHERE partition >= 0 ORDER BY key'
        )
        assert [tuple(row) for row in found] == [("at/0", "ok"), ("at/2", "ok")]


async def test_changes_behind_an_incomplete_event_wait(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """The position stays before it, and so does the state; there is no offset map."""
    first: list[EventContext] = []

    async def handle(context: EventContext) -> object:
        context.store.put(f"at/{context.message.offset}", 1)
        if context.message.offset != 3:
            return None
        first.append(context)
        return Incomplete()

    async def finalise(context: EventContext) -> None:
        context.store.put("finalised", 1)

    async with (
        state_tables(embedded_postgres.dsn) as tables,
        tables.state() as state,
        Consumer(state.attach(MemorySource(log_of(9))), ordering="partition") as consumer,
    ):
        async with running(consumer.run_events(handle, state=state)):
            while consumer.stats().counts.acked < 8:
                await CLOCK.sleep(0.005)
            await consumer.commit()
            assert await tables.stored() == (3, {f"at/{at}": 1 for at in range(3)})
            metadata = await tables.con.fetchval(f'SELECT metadata FROM "{tables.positions}"')
            assert metadata == "sluicegate-state 1"  # no map of offsets
            assert first[0].job_complete(finalise)
            while consumer.stats().counts.acked < 9:
                await CLOCK.sleep(0.005)
            consumer.stop()
        assert await tables.stored() == (9, {"finalised": 1} | {f"at/{at}": 1 for at in range(9)})


@asynccontextmanager
async def running(work: Any) -> AsyncGenerator[asyncio.Task[Any]]:
    """Run a task beside the body; the end of the body ends it."""
    async with asyncio.TaskGroup() as group:
        yield group.create_task(work)


async def test_a_partition_full_of_changes_waits(embedded_postgres: EmbeddedPostgres) -> None:
    """The changes behind an incomplete event are limited; its finaliser lets everything
    continue.
    """
    held: list[EventContext] = []
    behind = [0] * 4

    async def handle(context: EventContext) -> object:
        offset = context.message.offset
        context.store.put(f"at/{offset}", 1)
        if offset % 50:
            behind[len(held) - 1] += not held[-1].user_data
            return None
        held.append(context)
        return Incomplete()

    async def finalise(context: EventContext) -> None:
        context.user_data = "complete"
        context.store.put("n", context.store.get("n", 0) + 1)

    async with (
        state_tables(embedded_postgres.dsn) as tables,
        tables.state(max_pending=10) as state,
        Consumer(
            state.attach(MemorySource(log_of(200), ends=True)),
            ordering="partition",
            commits=Commits(every=60.0),
        ) as consumer,
    ):
        async with running(consumer.run_events(handle, state=state)) as task:
            for number in range(4):
                while len(held) <= number:
                    await CLOCK.sleep(0.005)
                while await tables.position() < number * 50:
                    await CLOCK.sleep(0.005)
                await CLOCK.sleep(0.05)  # time for events that must not begin
                assert held[number].job_complete(finalise)
            await task
        _, state_now = await tables.stored()
        assert state_now == {"n": 4} | {f"at/{at}": 1 for at in range(200)}
    assert behind == [9] * 4


async def test_interjections_of_a_quiet_partition(embedded_postgres: EmbeddedPostgres) -> None:
    """Their changes are stored although the position does not move; a failed interjection changes
    nothing.
    """
    calls = 0

    async def tick(context: EventContext) -> None:
        nonlocal calls
        calls += 1
        context.store.put("ticks", calls)
        if calls == 3:
            raise RuntimeError("not this time")

    async def handle(context: EventContext) -> None:
        context.store.put("events", context.store.get("events", 0) + 1)

    async with (
        state_tables(embedded_postgres.dsn) as tables,
        tables.state() as state,
        Consumer(
            state.attach(MemorySource(log_of(2))), ordering="partition", commits=Commits(every=60.0)
        ) as consumer,
    ):
        async with running(consumer.run_events(handle, state=state)):
            while consumer.stats().counts.acked < 2:
                await CLOCK.sleep(0.005)
            await consumer.commit()
            for number in (1, 2):
                await consumer.interject(tick)
                await consumer.commit()
                assert await tables.stored() == (2, {"events": 2, "ticks": number})
            with pytest.raises(RuntimeError):
                await consumer.interject(tick)
            await consumer.commit()
            assert await tables.stored() == (2, {"events": 2, "ticks": 2})
            consumer.stop()


async def test_many_entries(
    embedded_postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/G23: a restore reads them once, in pages, and nothing runs before it ends, not even
    interjections.
    """
    ready: list[bool] = []
    caplog.set_level("INFO", "sluicegate.flow")

    async def tick(context: EventContext) -> None:
        ready.append(len(context.store) == 30_000)
        context.store.put("k1", context.store.get("k1", 0) + 1)

    async with state_tables(embedded_postgres.dsn) as tables:

        async def handle(context: EventContext) -> None:
            ready.append(len(context.store) == 30_000)
            context.store.put("k2", len(ready))

        async with tables.state():
            pass
        await tables.con.execute(
            f"INSERT INTO \"{tables.table}\" SELECT 'group', 't', 0, 'k' || n, "
            "'0' FROM generate_series(1, 30000) AS n"
        )
        log = log_of(1)
        await tables.con.execute(f'UPDATE "{tables.table}" SET consumer_group = $1', log.group.name)
        await run(tables, log, handle, interjections=[Interjector(tick, every=0.001)])
        _, state = await tables.stored()
        assert state["k1"] == len(ready) - 1
    assert len(ready) > 1
    assert caplog.text.count("30,000 entries in") == 1
    assert all(ready)


async def test_a_consumer_that_reads_its_state(embedded_postgres: EmbeddedPostgres) -> None:
    """consumer/G23: it is not ready, and `explain()` says why; a failed read is retried."""
    async with state_tables(embedded_postgres.dsn) as tables, tables.state() as state:
        log = log_of(3)
        await tables.con.execute(f'BEGIN; LOCK TABLE "{tables.table}"')
        async with Consumer(
            state.attach(MemorySource(log, ends=True)),
            ordering="partition",
            commits=Commits(every=0.01),
        ) as consumer:
            task = asyncio.create_task(consumer.run_events(_count, state=state))
            while consumer.health().not_ready != READING:
                await CLOCK.sleep(0.001)
            (part,) = consumer.explain().partitions
            assert [cause.reason for cause in part.causes] == ["reading its state"]
            await tables.con.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock'"
            )
            await tables.con.execute("ROLLBACK")
            assert (await task).counts.acked == 3
        assert await tables.stored() == (3, {"n": 3})


async def _count(context: EventContext) -> None:
    context.store.put("n", context.store.get("n", 0) + 1)
