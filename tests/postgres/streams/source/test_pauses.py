"""Pauses of a subscription and of its slots, and the end of a finite source.

White box: a shorter interval of the checks, and the slot of a stream.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.source.stream_help import WITHIN, positions, source_of, until_the_end

from sluicegate import Consumer
from sluicegate.postgres.streams import options
from sluicegate.postgres.streams.selection import slot_of
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate import Message
    from sluicegate.batcher import LoopClock


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the interval between looks."""
    monkeypatch.setattr(options, "CHECK_EVERY", 0.02)


async def pause(log: Log, con: Any, stream: str | None = None, *, paused: bool = True) -> None:
    """Pause or continue the subscription, or the slot of a stream."""
    if stream is None:
        await con.execute(f"UPDATE {log.sql}.subscription SET paused = $1", paused)
    else:
        await con.execute(
            f"UPDATE {log.sql}.subscription_slot SET paused = $1 WHERE slot = $2",
            paused,
            slot_of(stream),
        )


async def run_to_the_end(log: Log) -> list[int]:
    """The records that a source delivers until it ends."""
    host, reader = RecordingHost(), source_of(log, ends=True)
    async with reader.open(host):
        return await until_the_end(reader, host)


class PauseHost(RecordingHost):
    """Waits for troubles."""

    async def trouble(self, part: str | None) -> None:
        """Wait until this is part of the last trouble; `None`: until there is none."""

        def is_there() -> bool:
            last = self.reports[-1] if self.reports else None
            return last is None if part is None else last is not None and part in last

        await self.news.wait_for(is_there)


async def test_a_slot_is_paused_and_continued_while_it_is_served(
    log: Log, real_clock: LoopClock
) -> None:
    """The trouble names it, other slots continue, and no message of it is lost."""
    host, reader = PauseHost(), source_of(log)
    async with asyncio.timeout(WITHIN), log.connected() as con, reader.open(host):
        claims = await host.wait_for_claims(256)
        await pause(log, con, "s-1")
        await host.trouble(f"the slots {slot_of('s-1')} are paused: `sluicegate stream resume`")
        (kept,) = await log.append(con, "s-1", 1)
        (other,) = await log.append(con, "s-2", 1)
        assert await positions(reader, host) == [other]
        await pause(log, con, "s-1", paused=False)
        await host.trouble(None)
        assert await positions(reader, host) == [kept]
        assert host.open == claims


async def test_a_subscription_is_paused_and_continued_while_it_is_served(
    log: Log, real_clock: LoopClock
) -> None:
    """Nothing is delivered meanwhile, and everything afterwards."""
    host, reader = PauseHost(), source_of(log)
    async with asyncio.timeout(WITHIN), log.connected() as con, reader.open(host):
        claims = await host.wait_for_claims(256)
        await pause(log, con)
        await host.trouble("the subscription is paused")
        appended = await log.append(con, "s-1", 1)
        waiting = asyncio.create_task(positions(reader, host))
        another = source_of(log, subscription="another", ends=True)
        async with another.open(other := RecordingHost()):
            assert await until_the_end(another, other) == appended
        assert not waiting.done()
        await pause(log, con, paused=False)
        assert await waiting == appended
        assert host.open == claims


async def test_a_source_ends_without_what_is_paused(log: Log, real_clock: LoopClock) -> None:
    """A finite run waits for neither a paused slot nor a paused subscription, and loses nothing."""
    async with asyncio.timeout(WITHIN), log.connected() as con:
        kept, other = await log.append(con, "s-1", 1), await log.append(con, "s-2", 1)
        async with source_of(log).open(RecordingHost()):
            pass  # it has begun
        await pause(log, con)
        assert await run_to_the_end(log) == []
        await pause(log, con, paused=False)
        host, reader = PauseHost(), source_of(log, ends=True)
        async with reader.open(host):
            await host.wait_for_claims(256)
            await pause(log, con, "s-1")
            await host.trouble("are paused")
            assert await until_the_end(reader, host) == other
        assert await run_to_the_end(log) == [], "its slot is not claimed either"
        await pause(log, con, "s-1", paused=False)
        assert await run_to_the_end(log) == kept


async def test_slots_of_others_that_have_only_what_is_left_out_are_over(
    log: Log, real_clock: LoopClock
) -> None:
    """Positions do not pass messages that are never delivered, and neither process waits for
    them.
    """
    now = datetime.now(UTC)
    async with asyncio.timeout(WITHIN), log.connected() as con:
        appended: list[int] = []
        for number in range(20):  # in slots of both processes; every second message is skipped
            appended += await log.append(con, f"s-{number}", 1)
        await con.execute(
            f"UPDATE {log.sql}.message SET at = at - interval '1 hour' WHERE position % 2 = 0"
        )
        first = source_of(log, ends=True, start=now)
        second = source_of(log, ends=True)
        hosts = RecordingHost(), RecordingHost()
        async with first.open(hosts[0]), second.open(hosts[1]):
            await hosts[0].wait_for_claims(128)
            await hosts[1].wait_for_claims(128)
            found = await asyncio.gather(
                until_the_end(first, hosts[0]), until_the_end(second, hosts[1])
            )
        assert sorted([*found[0], *found[1]]) == appended[::2]


async def test_a_consumer_goes_on_after_a_pause(
    log: Log, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """`explain()` names the pause, and each message is handled once."""
    handled: list[int] = []
    changed, told = asyncio.Event(), asyncio.Event()

    def noticed(record: logging.LogRecord) -> bool:
        if "is paused" in record.getMessage():
            told.set()
        return True

    caplog.handler.addFilter(noticed)

    async def handle(message: Message) -> None:
        handled.append(message.offset)
        changed.set()

    async with asyncio.timeout(WITHIN), log.connected() as con:
        consumer = Consumer(source_of(log), clock=real_clock, drain=1.0)
        async with consumer:
            run = asyncio.create_task(consumer.run(handle))
            first = await log.append(con, "s-1", 1)
            await changed.wait()
            changed.clear()
            await pause(log, con)
            await told.wait()
            assert "the subscription is paused" in str(consumer.explain())
            behind = await log.append(con, "s-1", 2)
            await pause(log, con, paused=False)
            await changed.wait()
            assert handled == first + behind
            consumer.stop()
            await run
