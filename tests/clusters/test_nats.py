"""A server of a cluster is lost or leaves, or a stream or a consumer moves, while a sink publishes
and a source consumes, or a pipe does both.

White box: the data folders, configurations and process ids of the servers.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import Placement
from tests.clusters.nats_leaders import ask, leader_of, start
from tests.kafka.source.storm_help import News
from tests.nats.sink.nats_help import context_of, new_stream, plain, read

from sluicegate import Batcher, Consumer, Limits, Retry, flow, stack
from sluicegate.batcher import LoopClock
from sluicegate.nats import JetStreamSource, NatsSink
from sluicegate.testing import embedded_nats
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sluicegate import Message
    from sluicegate.testing import EmbeddedNats

pytestmark = [pytest.mark.usefixtures("real_clock"), pytest.mark.timeout(400)]
KEYS = 10
SERVERS = 4
"""One more than replicas, so that a replica can move."""
TAGS = "server_tags: [{}]\nlame_duck_duration: 30s\nlame_duck_grace_period: 1s\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedNats]:
    """Servers that a placement can avoid: each has a tag `not-N` for each other one."""
    with there_or_skip("nats", embedded_nats(servers=SERVERS)) as cluster:
        for number, server in enumerate(cluster._servers, 1):
            tags = [f"not-{other}" for other in range(1, SERVERS + 1) if other != number]
            with (server.folder.path / "server.conf").open("a") as config:
                config.write("\n" + TAGS.format(", ".join(tags)))
        cluster.stop()
        start(cluster)
        yield cluster


def step_down(nats: EmbeddedNats, stream: str) -> None:
    ask(nats, f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}")
    leader_of(nats, stream)


def move_consumer(nats: EmbeddedNats, stream: str) -> None:
    ask(nats, f"$JS.API.CONSUMER.LEADER.STEPDOWN.{stream}.all")


def kill(nats: EmbeddedNats, stream: str) -> None:
    nats.kill(leader_of(nats, stream))


def freeze(nats: EmbeddedNats, stream: str) -> None:
    nats.pause(leader_of(nats, stream))


def wipe(nats: EmbeddedNats, stream: str) -> None:
    """The server comes back without its data; the next one may be lost once it has all of them."""
    leader = leader_of(nats, stream)
    nats.kill(leader)
    shutil.rmtree(nats._servers[leader - 1].home / "data")
    start(nats, leader)
    ask(nats, "$JS.API.STREAM.LIST", are_complete)


def are_complete(told: Any) -> bool:
    replicas = [each for one in told["streams"] for each in one["cluster"].get("replicas", ())]
    return all(each["current"] for each in replicas) and not told.get("missing")


def remove_peer(nats: EmbeddedNats, stream: str) -> None:
    """Another server gets the replica of the leader."""
    peer = nats._names[leader_of(nats, stream) - 1]
    asyncio.run(_request(nats, f"$JS.API.STREAM.PEER.REMOVE.{stream}", {"peer": peer}))


def retag(nats: EmbeddedNats, stream: str) -> None:
    """The stream leaves the server of its leader, because of its placement."""
    asyncio.run(_place(nats, stream, f"not-{leader_of(nats, stream)}"))


def lame_duck(nats: EmbeddedNats, stream: str) -> None:
    """The server hands over its leaders, then its clients, and ends."""
    server = nats._servers[leader_of(nats, stream) - 1]
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGUSR2)
    server._process.wait(60)


async def _request(nats: EmbeddedNats, subject: str, body: dict[str, str]) -> None:
    async with plain(nats) as client:
        answer = json.loads((await client.request(subject, json.dumps(body).encode(), 10)).data)
    assert "error" not in answer, answer


async def _place(nats: EmbeddedNats, stream: str, tag: str) -> None:
    async with plain(nats) as client:
        context = context_of(client)
        config = (await context.stream_info(stream)).config
        config.placement = Placement(tags=[tag])
        await context.update_stream(config)


EVENTS = [step_down, move_consumer, freeze, kill, wipe, remove_peer, retag, lame_duck]


@pytest.mark.parametrize(
    "is_piped", [False, pytest.param(True, marks=pytest.mark.long)], ids=["handled", "piped"]
)
@pytest.mark.parametrize(
    "event",
    [
        EVENTS[0],
        *(pytest.param(each, marks=pytest.mark.long) for each in EVENTS[1:]),
    ],
    ids=lambda event: event.__name__,
)
async def test_each_message_is_in_the_stream_once_and_is_handled_in_order(
    cluster: EmbeddedNats, event: Callable[[EmbeddedNats, str], None], is_piped: bool
) -> None:
    """The server drops a repeated message by its id. The first stream's leader is also the server
    of the clients.
    """
    clock, news = LoopClock(), News()
    streams = [await new_stream(cluster, num_replicas=3) for _ in range(1 + is_piped)]
    leader = await asyncio.to_thread(leader_of, cluster, streams[0])
    urls = cluster.url.split(",")
    nearest: dict[str, Any] = {
        "servers": [*urls[leader - 1 :], *urls[: leader - 1]],
        "dont_randomize": True,
        "reconnect_time_wait": 0.1,
    }
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

    def into(stream: str, **options: Any) -> Batcher[Any]:
        sink: Any = NatsSink(
            lambda item: f"{stream}.{item['key']}",
            ack_timeout=1.0,
            **nearest,
            **options,
        )
        return Batcher(
            stack(sink, Retry(attempts=100)),
            key=lambda item: item["key"],
            limits=Limits(max_items=50, max_delay=0.01, workers=4),
        )

    def out_of(stream: str) -> JetStreamSource:
        return JetStreamSource(stream, durable="all", **nearest)

    batcher = into(streams[0])
    async with asyncio.timeout(300), AsyncExitStack() as inside:
        consumer = await inside.enter_async_context(Consumer(out_of(streams[-1]), name="nats"))
        running: list[asyncio.Future[Any]] = [asyncio.ensure_future(consumer.run(handle))]
        stops = [consumer.stop]
        if is_piped:
            piped = flow.pipe(
                out_of(streams[0]),
                into(streams[1], message_id="n"),
                transform=lambda record: json.loads(record.value),
            )
            running.append(asyncio.ensure_future(piped.run()))
            stops.append(piped.stop)
        async with batcher:
            fill = asyncio.ensure_future(feed())
            for stream in streams:
                await seen(fed + 100)
                longest = longest if stream != streams[0] else 0.0
                await asyncio.to_thread(event, cluster, stream)
                await seen(fed + 100)
                await asyncio.to_thread(cluster.resume)
                await asyncio.to_thread(start, cluster)
                await seen(fed + 100)
            feeding = False
            await fill
        last = {*range(fed - KEYS, fed)}
        await news.until(lambda: last <= {*handled})
        for stop in stops:
            stop()
        await asyncio.gather(*running)
    told = event.__name__, "piped" if is_piped else "handled"
    print(*told, fed, "fed", len(handled) - fed, "twice,", round(longest, 1), "s")  # noqa: T201
    for stream in streams:
        stored = [each.item["n"] for each in await read(cluster, stream)]
        assert sorted(stored) == [*range(fed)]
        assert in_order(stored)
    assert {*handled} == {*range(fed)}
    assert in_order([*dict.fromkeys(handled)])


def in_order(numbers: list[int]) -> bool:
    of_keys = [[n for n in numbers if n % KEYS == key] for key in range(KEYS)]
    return all(each == sorted(each) for each in of_keys)
