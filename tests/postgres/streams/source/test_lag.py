"""The lag of a subscription: the number of messages, not positions, in each slot.

White box: a smaller limit of the count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.postgres.streams.source.stream_help import WITHIN, claim_on, source_of

from sluicegate import Consumer
from sluicegate.consumer import CountsLag, Unread
from sluicegate.consumer.operating.health import Lag
from sluicegate.postgres.streams import serving as subscription
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    import pytest
    from tests.postgres.streams.log_help import Log

    from sluicegate import Message
    from sluicegate.batcher import LoopClock
    from sluicegate.consumer import SourceClaim


async def test_messages_of_the_selection_are_counted_in_each_slot(
    log: Log, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """consumer/C:N5: positions of other slots and streams do not count; the age is that of the
    oldest one.
    """
    host, reader = RecordingHost(), source_of(log, category="order")
    async with asyncio.timeout(WITHIN), log.connected() as con, reader.open(host):
        await host.wait_for_claims(256)
        first, _ = await log.append(con, "order-1", 1, 2)
        await log.append(con, "other-1", *range(50))
        await log.append(con, "order-1", 3)
        await con.execute(
            f"UPDATE {log.sql}.message SET at = at - interval '1 hour' WHERE position = $1", first
        )
        claims: dict[SourceClaim, int] = dict.fromkeys(host.open, 0)
        one = claim_on(host, "order-1")
        assert isinstance(reader, CountsLag)
        lags = await reader.lag(claims)
        assert lags.keys() == claims.keys()
        assert {claim: lag.messages for claim, lag in lags.items() if lag != Unread(0, 0.0)} == {
            one: 3
        }
        assert 3600 <= lags[one].seconds < 3660
        lag = (await reader.lag({**claims, one: first + 1}))[one]
        assert (lag.messages, lag.seconds < 60) == (2, True)
        monkeypatch.setattr(subscription, "COUNT_TO", 2)
        assert (await reader.lag({one: 0}))[one].messages == 2
    async with reader.open(RecordingHost()):
        assert await reader.lag({one: 0}) == {}, "its claim has ended"


async def test_what_cannot_be_delivered_does_not_count(log: Log, real_clock: LoopClock) -> None:
    """S18: neither messages beyond the horizon, nor those that the start skips."""
    host, reader = RecordingHost(), source_of(log, start="next")
    async with asyncio.timeout(WITHIN), log.connected() as con, log.connected() as other:
        transaction = other.transaction()
        await transaction.start()
        await log.append(other, "s-1", 1)
        await log.append(con, "s-2", 1)  # visible beyond the horizon: earlier than the start
        async with reader.open(host):
            await host.wait_for_claims(256)
            one, two = claim_on(host, "s-1"), claim_on(host, "s-2")
            await log.append(con, "s-2", 2)
            at: dict[SourceClaim, int] = {claim: claim.start.offset for claim in (one, two)}
            assert await reader.lag(at) == {one: Unread(0, 0.0), two: Unread(0, 0.0)}
            await transaction.commit()
            assert {claim: lag.messages for claim, lag in (await reader.lag(at)).items()} == {
                one: 1,
                two: 1,
            }


async def test_a_consumer_has_no_lag_behind_messages_that_are_not_its_own(
    log: Log, real_clock: LoopClock
) -> None:
    """consumer/C:N5: positions used by other slots are no lag of a handled slot."""
    handled = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.key == "order-2":
            handled.set()

    async with asyncio.timeout(WITHIN), log.connected() as con:
        await log.append(con, "other-1", *range(20))
        await log.append(con, "order-2", 1)
        source = source_of(log, category="order")
        async with Consumer(source, clock=real_clock, drain=1.0) as consumer:
            run = asyncio.create_task(consumer.run(handle))
            await handled.wait()
            lags = await consumer.lag()
            assert len(lags) == 256
            assert set(lags.values()) == {Lag(0, 0.0)}
            consumer.stop()
            await run
