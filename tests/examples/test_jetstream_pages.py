"""The page on JetStream: its programs print the output on the page, its sources work, and a user
needs only the permissions that it lists.

White box: the function that a key of the page becomes.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import StreamConfig, SubjectTransform
from tests.examples.example import DOCS, load, printed_on

import nats
from sluicegate import ConfigError, Consumer
from sluicegate.nats import JetStreamSource, partitioned
from sluicegate.testing import embedded_nats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate import Message
    from sluicegate.testing import EmbeddedNats

PAGE = "how-to/consume-from-jetstream.md"
FIVE = 5
WITHIN = 120.0


@pytest.fixture
def server() -> Iterator[EmbeddedNats]:
    """A server without streams: the programs create streams of the same name."""
    with embedded_nats() as started:
        yield started


def test_retries_and_dead_letters_settle_every_order(
    server: EmbeddedNats, capsys: pytest.CaptureFixture[str]
) -> None:
    """O-T17, consumer/C:C7."""
    asyncio.run(load("jetstream_consumer").main(server.url))
    assert capsys.readouterr().out == printed_on(PAGE)[0]


def test_members_share_a_stream_and_one_goes_on(
    server: EmbeddedNats, capsys: pytest.CaptureFixture[str]
) -> None:
    """O-T23, consumer/C:R3."""
    asyncio.run(load("jetstream_shared").main(server.url))
    assert capsys.readouterr().out == printed_on(PAGE)[1]


def test_the_sources_of_the_page_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords are not shown."""
    module, servers = load("jetstream_sources"), "nats://nats:4222"
    assert len(module.what_is_the_key(servers)) == 5
    made = [*module.what_to_read(servers), *module.where_to_begin(servers)]
    assert len(made) == 2
    monkeypatch.setenv("NATS_PASSWORD", "hunter2")
    assert "hunter2" not in repr(module.how_to_log_in())
    assert all("partition(8," in destination for _, destination in module.how_a_stream_is_divided())


def test_the_keys_of_the_table() -> None:
    rows = re.findall(r"^\| (.+?) \| `\"(.+?)\"`.*\|$", (DOCS / PAGE).read_text(), re.MULTILINE)
    told = [expected for _, expected in rows][:3]
    from sluicegate.nats.jetstream.options import key_function

    assert [key_function(key)("orders.ann.eu", {}) for key in ("subject", 2, (2, 3))] == told


# -- rights ----------------------------------------------------------------------------------------


def listed_rights() -> dict[str, list[str]]:
    """The subjects in the page's table, by permission, without those of partitions."""
    rows = re.findall(r"^\| (publish|subscribe) \| `(.+?)` \|", (DOCS / PAGE).read_text(), re.M)
    return {may: [subject for each, subject in rows if each == may] for may, _ in rows}


def allowing(rights: dict[str, list[str]]) -> str:
    user = f"{{ user: app, password: b, permissions: {json.dumps(rights)} }}"
    return f"authorization {{ users = [{{ user: admin, password: a }}, {user}] }}"


async def fill(url: str) -> None:
    """The stream `ORDERS`, with five messages."""
    async with await nats.connect(url, user="admin", password="a") as client:
        stream: Any = client.jetstream()
        await stream.add_stream(name="ORDERS", subjects=["orders.*"])
        for number in range(FIVE):
            await stream.publish("orders.ann", str(number).encode())


async def settled(url: str) -> tuple[int, int]:
    """Consume the messages as this user; return the number of settled and of pending ones."""
    source = JetStreamSource(
        "ORDERS", servers=url, durable="billing", user="app", password="b", ack_wait=5.0
    )
    consumer = Consumer(source, name="billing")
    handled: list[bytes] = []

    async def bill(message: Message) -> None:
        handled.append(message.value)
        if len(handled) == FIVE:
            consumer.stop()

    await consumer.run(bill)
    async with await nats.connect(url, user="admin", password="a") as client:
        info = await client.jetstream().consumer_info("ORDERS", "billing")
        floor = info.ack_floor.stream_seq if info.ack_floor else 0
        return floor, info.num_ack_pending or 0


def test_the_rights_of_the_table_are_enough() -> None:
    rights = listed_rights()
    assert [len(rights[may]) for may in ("publish", "subscribe")] == [7, 2]
    with embedded_nats(allowing(rights)) as server:

        async def run() -> tuple[int, int]:
            await fill(server.url)
            return await asyncio.wait_for(settled(server.url), WITHIN)

        assert asyncio.run(run()) == (FIVE, 0)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("STREAM.INFO", marks=pytest.mark.long),  # it waits for an answer
        pytest.param("CONSUMER.INFO", marks=pytest.mark.long),
        pytest.param("CONSUMER.CREATE", marks=pytest.mark.long),
        "CONSUMER.MSG.NEXT",
    ],
)
def test_a_missing_right_is_a_reason(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    rights = listed_rights()
    rights["publish"] = [each for each in rights["publish"] if f".{kind}." not in each]
    with embedded_nats(allowing(rights)) as server:

        async def run() -> None:
            await fill(server.url)
            run = asyncio.create_task(settled(server.url))
            while not any(
                "denies it; allow the user to publish" in told for told in caplog.messages
            ):
                assert not run.done()
                await asyncio.sleep(0.05)
            run.cancel()
            await asyncio.wait([run])

        asyncio.run(asyncio.wait_for(run(), WITHIN))
    assert f"$js.api.{kind.lower()}.orders" in "".join(caplog.messages)


# -- mistakes --------------------------------------------------------------------------------------


async def never(_: Message) -> None:
    raise AssertionError


@pytest.mark.parametrize(("divided", "named"), [(None, "no"), (4, "4")])
def test_partitions_are_those_of_the_stream(
    server: EmbeddedNats, divided: int | None, named: str
) -> None:
    async def run() -> None:
        config = StreamConfig(name="ORDERS", subjects=["orders.*"])
        if divided is not None:
            source, destination = partitioned("orders.*", divided)
            config.subject_transform = SubjectTransform(src=source, dest=destination)
        async with await nats.connect(server.url) as client:
            await client.jetstream().add_stream(config)
        reader = JetStreamSource("ORDERS", servers=server.url, durable="billing", partitions=8)
        await Consumer(reader).run(never)

    with pytest.raises(ConfigError) as refused:
        asyncio.run(run())
    told = f"the stream 'ORDERS' divides its subjects into {named} partitions, but partitions=8:"
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"ack_policy": "none"}, "has the ack policy 'none', not 'explicit'"),
        ({"deliver_subject": "x"}, "pushes its messages, but this source pulls"),
        ({"headers_only": True}, "delivers headers only"),
        ({"filter_subject": "orders.ann"}, "reads orders.ann, not orders.*"),
    ],
)
def test_a_consumer_of_another_kind_is_refused(
    server: EmbeddedNats, config: dict[str, Any], reason: str
) -> None:
    async def run() -> None:
        async with await nats.connect(server.url) as client:
            stream: Any = client.jetstream()
            await stream.add_stream(name="ORDERS", subjects=["orders.*"])
            fits = {"ack_policy": "explicit", "filter_subject": "orders.*"}
            await stream.add_consumer("ORDERS", **{"durable_name": "billing", **fits, **config})
        source = JetStreamSource(
            "ORDERS", servers=server.url, durable="billing", subjects="orders.*"
        )
        await Consumer(source).run(never)

    with pytest.raises(ConfigError) as refused:
        asyncio.run(asyncio.wait_for(run(), WITHIN))
    told = f"the consumer 'billing' of the stream 'ORDERS' {reason};"
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    ("stream", "arguments", "reason"),
    [
        ("NONE", {}, "stream not found (10059); to repair: create the stream"),
        ("JOBS", {"start": "latest"}, "consumer must be deliver all on workqueue stream (10101)"),
        (
            "JOBS",
            {"durable": "another"},
            "multiple non-filtered consumers not allowed on workqueue stream (10099)",
        ),
        ("JOBS", {"create": False}, "consumer not found (10014); to repair: create the consumer"),
    ],
)
def test_a_mistake_is_a_reason(
    server: EmbeddedNats, stream: str, arguments: dict[str, Any], reason: str
) -> None:
    async def run() -> str:
        async with await nats.connect(server.url) as client:
            context: Any = client.jetstream()
            await context.add_stream(name="JOBS", subjects=["jobs.*"], retention="workqueue")
            if "durable" in arguments:
                await context.pull_subscribe("jobs.*", durable="one", stream="JOBS")
        given: dict[str, Any] = {"durable": "billing", **arguments}
        consumer = Consumer(JetStreamSource(stream, servers=server.url, **given), name="billing")
        async with consumer:
            run = asyncio.create_task(consumer.run(never))
            while "source trouble" not in (told := str(consumer.explain())):
                assert not run.done()
                await asyncio.sleep(0.05)
            consumer.stop()
            await run
        return told

    assert reason in asyncio.run(asyncio.wait_for(run(), WITHIN))


def test_a_consumer_that_exists_is_read(server: EmbeddedNats) -> None:
    async def run() -> list[bytes]:
        handled, all_are = list[bytes](), asyncio.Event()

        async def bill(message: Message) -> None:
            handled.append(message.value)
            if len(handled) == FIVE:
                all_are.set()

        await fill(server.url)
        async with await nats.connect(server.url) as client:
            await client.jetstream().pull_subscribe("orders.*", durable="billing", stream="ORDERS")
        serving = asyncio.create_task(load("jetstream_sources").serve(server.url, bill))
        await all_are.wait()
        serving.cancel()
        await asyncio.wait([serving])
        return handled

    assert asyncio.run(asyncio.wait_for(run(), WITHIN)) == [b"%d" % each for each in range(FIVE)]
