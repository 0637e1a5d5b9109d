"""The leader of a replicated stream steps down, is killed or frozen while a sink publishes and a
source consumes.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka.source.storm_help import News
from tests.nats.sink.nats_help import new_stream, read

from sluicegate import Batcher, Consumer, Limits, Retry, stack
from sluicegate.batcher import LoopClock
from sluicegate.nats import JetStreamSource, NatsSink
from sluicegate.testing import embedded_nats
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sluicegate import Message
    from sluicegate.testing import EmbeddedNats

pytestmark = pytest.mark.usefixtures("real_clock")
KEYS = 10


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedNats]:
    with there_or_skip("nats", embedded_nats(servers=3)) as cluster:
        yield cluster


def step_down(nats: EmbeddedNats, stream: str) -> None:
    nats.step_down(stream)


def kill(nats: EmbeddedNats, stream: str) -> None:
    nats.kill(nats.leader_of(stream))


def freeze(nats: EmbeddedNats, stream: str) -> None:
    nats.pause(nats.leader_of(stream))


@pytest.mark.parametrize(
    "event",
    [step_down, *(pytest.param(each, marks=pytest.mark.long) for each in (freeze, kill))],
    ids=["step_down", "freeze", "kill"],
)
async def test_each_message_is_in_the_stream_once_and_is_handled_in_order(
    three: EmbeddedNats, event: Callable[[EmbeddedNats, str], None]
) -> None:
    """The server drops a repeated message by its id."""
    clock, news = LoopClock(), News()
    stream = await new_stream(three, num_replicas=3)
    handled: list[int] = []
    moved_at, longest, fed, feeding = clock.now(), 0.0, 0, True

    async def handle(message: Message) -> None:
        nonlocal moved_at, longest
        longest, moved_at = max(longest, clock.now() - moved_at), clock.now()
        handled.append(json.loads(message.value)["n"])
        news.tell()

    async def feed() -> None:
        nonlocal fed
        while feeding:
            for _ in range(4):
                await batcher.add({"n": fed, "key": f"k{fed % KEYS}"})
                fed += 1
            await clock.sleep(0.02)

    async def seen(number: int) -> None:
        await news.until(lambda: max(handled, default=-1) >= number)

    sink: Any = NatsSink(
        lambda item: f"{stream}.{item['key']}",
        servers=three.url,
        ack_timeout=1.0,
        reconnect_time_wait=0.1,
    )
    source = JetStreamSource(stream, servers=three.url, durable="all")
    batcher = Batcher(
        stack(sink, Retry(attempts=100)),
        key=lambda item: item["key"],
        limits=Limits(max_items=50, max_delay=0.01, workers=4),
    )
    async with asyncio.timeout(60), Consumer(source, name="nats") as consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        async with batcher:
            fill = asyncio.ensure_future(feed())
            await seen(100)
            longest = 0.0
            await asyncio.to_thread(event, three, stream)
            await seen(fed + 100)
            await asyncio.to_thread(three.resume)
            await asyncio.to_thread(three.start)
            await seen(fed + 100)
            feeding = False
            await fill
        last = {*range(fed - KEYS, fed)}
        await news.until(lambda: last <= {*handled})
        consumer.stop()
        await running
    stored = [each.item["n"] for each in await read(three, stream)]
    print(event.__name__, len(handled) - fed, "twice,", round(longest, 1), "s")  # noqa: T201
    assert sorted(stored) == [*range(fed)]
    assert {*handled} == {*stored}
    firsts = [*dict.fromkeys(handled)]
    for numbers in (stored, firsts):
        for key in range(KEYS):
            of_key = [number for number in numbers if number % KEYS == key]
            assert of_key == sorted(of_key)
