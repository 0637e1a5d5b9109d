"""The start of a subscription, tested on the source itself.

White box: a shorter interval, and a start that is delayed.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.source.stream_help import (
    WITHIN,
    claim_on,
    positions,
    source_of,
    until_the_end,
)

from sluicegate import ConfigError
from sluicegate.postgres import PostgresStreamSource, PostgresSubscriptions
from sluicegate.postgres.streams import options
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate._core.subscriptions import SubscriptionStart
    from sluicegate.batcher import LoopClock

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the interval between looks."""
    monkeypatch.setattr(options, "CHECK_EVERY", 0.02)


async def delivered(log: Log, **given: Any) -> list[int]:
    """The records delivered by a run to the end of the log."""
    host, reader = RecordingHost(), source_of(log, ends=True, **given)
    async with reader.open(host):
        return await until_the_end(reader, host)


async def append_at(log: Log, con: Any, *minutes: int) -> list[int]:
    """Append messages to the streams with times at these minutes after noon; return positions."""
    found: list[int] = []
    for minute in minutes:
        position: int = (await log.append(con, f"s-{minute}", minute))[0]
        at = NOON + timedelta(minutes=minute)
        await con.execute(f"UPDATE {log.sql}.message SET at = $1 WHERE position = $2", at, position)
        found.append(position)
    return found


@pytest.mark.parametrize("start", ["beginning", "next"])
async def test_the_beginning_and_the_next_message(
    log: Log, real_clock: LoopClock, start: str
) -> None:
    """S6, S-T5, P6: earlier messages only from the beginning, and all later ones; a later start of
    the same subscription changes nothing.
    """
    async with asyncio.timeout(WITHIN), log.connected() as con:
        earlier = await log.append(con, "s-1", 1, 2)
        assert await delivered(log, start=start) == (earlier if start == "beginning" else [])
        behind = await log.append(con, "s-1", 3)
        assert await delivered(log, start=NOON) == behind
        assert await delivered(log, start="next") == []


async def test_a_time_with_ties_and_a_clock_that_jumped_back(
    log: Log, real_clock: LoopClock
) -> None:
    """S6, S-T5, P6: for every time in the log exactly the messages at that time and later, and all
    that are appended after the start, whatever their time.
    """
    minutes = [10, 20, 20, 15, 30, 20]
    async with asyncio.timeout(WITHIN), log.connected() as con:
        appended = dict(zip(await append_at(log, con, *minutes), minutes, strict=True))
        for minute in (0, 10, 15, 20, 25, 30, 31):
            time = NOON + timedelta(minutes=minute)
            wanted = [position for position, at in appended.items() if at >= minute]
            assert await delivered(log, subscription=f"from {minute}", start=time) == wanted
        late = await append_at(log, con, 1)
        for minute in (0, 20, 31):
            assert await delivered(log, subscription=f"from {minute}", start="next") == late


@pytest.mark.parametrize("start", ["next", NOON])
async def test_a_message_that_was_invisible_at_the_start_is_delivered(
    log: Log, real_clock: LoopClock, start: Any
) -> None:
    """S-T5, P6, S18: whatever its own time; a message that was visible beyond the horizon is
    not.
    """
    host, reader = RecordingHost(), source_of(log, start=start)
    async with asyncio.timeout(WITHIN), log.connected() as con, log.connected() as other:
        transaction = other.transaction()
        await transaction.start()
        (open_one,) = await append_at(log, other, -5)
        (visible,) = await append_at(log, con, -4)
        async with reader.open(host):
            await host.wait_for_claims(256)
            (behind,) = await append_at(log, con, -3)
            await transaction.commit()
            found = await positions(reader, host)
            assert found == [open_one, behind]
            assert open_one < visible < behind


class Held(PostgresSubscriptions):
    """Delays the first start until another process has made one."""

    def __init__(self, log: Log) -> None:
        super().__init__(log.dsn, schema=log.schema)
        self.computed = asyncio.Event()
        self.released = asyncio.Event()
        self.was_first: bool | None = None

    async def initialize(self, name: str, start: SubscriptionStart) -> bool:
        self.computed.set()
        await self.released.wait()
        self.was_first = await super().initialize(name, start)
        return self.was_first


async def test_two_instances_that_start_at_once_apply_one_start(
    log: Log, real_clock: LoopClock
) -> None:
    """S8, S-T6: the second process uses the start of the first, not its own."""
    state = Held(log)
    async with asyncio.timeout(WITHIN), log.connected() as con:
        slow = asyncio.create_task(delivered(log, start="next", state=state, locks=state))
        await state.computed.wait()
        await log.append(con, "s-1", 1)  # behind the start of `slow`, before that of the other one
        assert await delivered(log, start="next") == []
        behind = await log.append(con, "s-1", 2)
        state.released.set()
        assert await slow == behind
        assert state.was_first is False


@pytest.mark.parametrize("start", [datetime(2026, 3, 1, 12), "last", 7, None])
def test_a_bad_start_is_named(start: Any) -> None:
    """S7, S-T5: including a time without a zone; the error has the argument, the value and the
    rule.
    """
    with pytest.raises(ConfigError) as raised:
        PostgresStreamSource("postgresql://localhost/db", subscription="s", start=start)
    told = str(raised.value)
    assert told.startswith("start=")
    assert repr(start) in told
    assert 'must be "beginning", "next" or a datetime with a time zone' in told


async def test_a_reset_delivers_what_the_start_left_out_to_a_process_that_runs(
    log: Log, real_clock: LoopClock
) -> None:
    """S-T5: claims that may have skipped it end, even if their positions are the same."""
    host, reader = RecordingHost(), source_of(log, start="next")
    async with asyncio.timeout(WITHIN), log.connected() as con, log.connected() as other:
        transaction = other.transaction()
        await transaction.start()
        await log.append(other, "s-1", 1)
        (left_out,) = await log.append(con, "s-2", 1)
        async with reader.open(host):
            await host.wait_for_claims(256)
            (behind,) = await log.append(con, "s-2", 2)
            await transaction.commit()
            assert left_out not in await positions(reader, host)
            before = claim_on(host, "s-2")
            await con.execute(f"UPDATE {log.sql}.subscription SET earlier = '{{}}'")
            await host.news.wait_for(lambda: before.is_closed and len(host.open) == 256)
            again = await positions(reader, host)
            assert {left_out, behind} <= {*again}


async def test_what_is_left_out_in_addition_ends_no_claim(log: Log, real_clock: LoopClock) -> None:
    """S18: for example a message that an operator skips."""
    host, reader = RecordingHost(), source_of(log)
    async with asyncio.timeout(WITHIN), log.connected() as con, log.connected() as other:
        async with reader.open(host):
            claims = await host.wait_for_claims(256)
            transaction = other.transaction()
            await transaction.start()
            await log.append(other, "s-1", 1)
            left_out, behind = await log.append(con, "s-2", 1, 2)
            await con.execute(
                f"UPDATE {log.sql}.subscription SET earlier = $1, paused = true", [left_out]
            )
            await host.news.wait_for(lambda: any(host.reports))
            await con.execute(f"UPDATE {log.sql}.subscription SET paused = false")
            await transaction.commit()
            found = await positions(reader, host)
            assert found[-1] == behind
            assert left_out not in found
            assert host.open == claims
