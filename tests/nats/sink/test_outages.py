"""B-T40: a server that is stopped, killed or frozen under a sink at full load.

The stream's own count and its sequence of payloads show what was stored, and how often.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.nats.sink.nats_help import Written, count, new_stream, read

from sluicegate import (
    Batcher,
    DeadLetter,
    Limits,
    Observer,
    Outcome,
    Retry,
    RowBatch,
    UnavailableError,
    UnknownOutcomeError,
    send,
    stack,
)
from sluicegate.batcher import LoopClock
from sluicegate.errors import TimedOutError
from sluicegate.nats import NatsSink
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Batch
    from sluicegate.testing import EmbeddedNats

KEYS, ITEMS = 40, 6_000
FAST: dict[str, Any] = {"reconnect_time_wait": 0.02, "ack_timeout": 0.4}


def fast(ack_timeout: float) -> dict[str, Any]:
    """Options with another timeout for acknowledgements."""
    return {**FAST, "ack_timeout": ack_timeout}


class Counts(Observer):
    """The outcomes so far, and an event for a number of them."""

    def __init__(self, moment: int) -> None:
        self.times: Counter[Outcome] = Counter()
        self.reached = asyncio.Event()
        self._moment = moment

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        self.times[outcome] += len(indices)
        if self.times.total() >= self._moment:
            self.reached.set()


async def kill(server: EmbeddedNats) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def restart(server: EmbeddedNats) -> None:
    await asyncio.to_thread(server.restart)


async def freeze(server: EmbeddedNats) -> None:
    """Freeze the server for longer than the sink waits for acknowledgements."""
    await asyncio.to_thread(server.pause)
    try:
        await LoopClock().sleep(0.7)
    finally:
        await asyncio.to_thread(server.resume)


async def freeze_and_kill(server: EmbeddedNats) -> None:
    """Freeze, then kill the server; messages sent meanwhile are lost."""
    await asyncio.to_thread(server.pause)
    await LoopClock().sleep(0.2)
    await kill(server)


EVENTS = {"killed": kill, "restarted": restart, "frozen": freeze, "frozen, killed": freeze_and_kill}


async def under_load(
    server: EmbeddedNats, event: str, moment: int, *, items: int = ITEMS, **given: Any
) -> tuple[Counter[int], Counter[Outcome]]:
    """Return the copies of each item in the stream after an event at full load, and the outcomes;
    check order and tally.
    """
    stream, letters, counts = await new_stream(server), MemorySink[Any](), Counts(moment)
    sink = NatsSink(f"{stream}.a", servers=server.url, **FAST, **given)
    batcher = Batcher(
        stack(sink, Retry(attempts=50), DeadLetter(letters)),
        key=lambda item: item["key"],
        limits=Limits(max_items=200, max_delay=0.01, workers=4),
        observers=[counts],
    )
    async with batcher:

        async def feed() -> None:
            for number in range(items):
                await batcher.add({"key": f"k{number % KEYS}", "number": number})

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(feed())
            await counts.reached.wait()
            await EVENTS[event](server)
    report = batcher.report
    assert report is not None
    assert report.complete
    assert report.tally.delivered + report.tally.duplicate == items, report.tally
    assert not letters.items
    found = [each.item for each in await read(server, stream)]
    assert len(found) == await count(server, stream)
    times = Counter(each["number"] for each in found)
    assert {*times} == {*range(items)}
    firsts: dict[str, dict[int, None]] = {}
    for each in found:
        firsts.setdefault(each["key"], {})[each["number"]] = None
    assert all([*numbers] == sorted(numbers) for numbers in firsts.values())
    return times, counts.times


@pytest.mark.long
@pytest.mark.parametrize("event", EVENTS)
async def test_each_item_is_in_the_stream_once_after_an_outage(
    own: EmbeddedNats, real_clock: LoopClock, event: str
) -> None:
    """With message ids, a repeated send after an unknown outcome does not create a second
    message.
    """
    times, outcomes = await under_load(own, event, 1_500)
    assert {*times.values()} == {1}
    assert {*outcomes} <= {Outcome.DELIVERED, Outcome.DUPLICATE}


async def test_without_ids_only_what_was_unknown_may_be_there_twice(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    times, _ = await under_load(own, "frozen", 1_500, message_id=lambda _: None)
    twice = [number for number, each in times.items() if each > 1]
    assert len(twice) <= 4 * 200 * 4, "a few batches were on their way"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(30))
async def test_each_item_is_in_the_stream_once_after_outages_at_random_moments(
    own: EmbeddedNats, real_clock: LoopClock, seed: int
) -> None:
    at_random = random.Random(seed)
    event = at_random.choice([*EVENTS])
    times, _ = await under_load(
        own, event, at_random.randrange(1, 5_500), max_in_flight=at_random.choice([1, 50, 1_000])
    )
    assert {*times.values()} == {1}


async def test_a_lost_connection_is_unknown_for_what_was_sent_and_unavailable_for_the_rest(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(own)
    sink = NatsSink(f"{stream}.a", servers=own.url, max_in_flight=3, **fast(20))
    written = Written([{"n": number} for number in range(6)])
    async with sink:
        own.pause()
        writing = asyncio.ensure_future(written.write(sink))
        for _ in range(10):
            await asyncio.sleep(0)
        own.kill()
        errors = await writing
        assert [type(errors[index]) for index in range(6)] == [
            *[UnknownOutcomeError] * 3,
            *[UnavailableError] * 3,
        ]
        assert "was lost before the reply" in str(errors[0])
        errors = await written.write(sink)
        assert {type(each) for each in errors.values()} == {UnavailableError}
        own.start()
        while errors:
            errors = await written.write(sink)
            await real_clock.sleep(0.005)
    assert [each.item["n"] for each in await read(own, stream)] == [0, 1, 2, 3, 4, 5]


async def test_a_frozen_server_is_unknown_after_the_timeout_and_found_out_by_a_retry(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(own)
    sink = NatsSink(f"{stream}.a", servers=own.url, **fast(0.1))
    written = Written([{"n": number} for number in range(3)])
    async with sink:
        own.pause()
        errors = await written.write(sink)
        assert {type(each) for each in errors.values()} == {TimedOutError}
        own.resume()
        while await written.write(sink):
            pass
    assert {*written.books.outcomes.values()} <= {Outcome.DELIVERED, Outcome.DUPLICATE}
    assert await count(own, stream) == 3


async def test_a_cancelled_write_settles_what_is_stored_and_waits_for_nothing_more(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(own)
    async with NatsSink(f"{stream}.a", servers=own.url, max_in_flight=2, **fast(60)) as sink:
        channel = sink._channel
        assert channel is not None
        written = Written([{"n": number} for number in range(2_000)])
        writing = asyncio.ensure_future(written.write(sink))
        while not await count(own, stream):
            pass
        own.pause()
        await real_clock.sleep(0.05)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert not channel.waiting._of
        settled = len(written.books.outcomes)
        own.resume()
        assert await written.write(sink) == {}
    stored = await count(own, stream)
    assert 0 < settled < stored == 2_000


async def test_closing_is_bounded_while_the_server_is_frozen_or_gone(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(own)
    for event in (own.pause, own.kill):
        async with NatsSink(f"{stream}.a", servers=own.url, **FAST) as sink:
            assert await send(sink, RowBatch([{"n": 1}])) == {}
            event()
            await send(sink, RowBatch([bytes(1_000_000)] * 10))
        own.resume()


async def test_a_connection_that_is_given_up_is_opened_anew(
    own: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(own)
    async with NatsSink(f"{stream}.a", servers=own.url, **FAST) as sink:
        channel = sink._channel
        assert channel is not None
        client = channel._client
        assert client is not None
        await client.publish("a", bytes(client.max_payload), headers={"one": "more"})
        while not client.is_closed:
            await real_clock.sleep(0.001)
        assert await send(sink, RowBatch([{"n": 1}])) == {}
    assert await count(own, stream) == 1


async def test_an_ordinary_outage_logs_nothing_of_the_client(
    own: EmbeddedNats, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    await under_load(own, "killed", 200, items=1_000)
    assert not [each for each in caplog.records if each.name.startswith("nats")]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
