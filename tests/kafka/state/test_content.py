"""State topics that have lost or gained records: refused at the next claim or commit. White box:
the run of an event, in which the topic changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import pytest
from tests.kafka.source.kafka_help import (
    delete_topic,
    fill,
    new_name,
    new_topic,
    produce,
    produce_undecodable,
    stored,
)
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.state.state_counted import Counted, counted
from tests.kafka.state.state_topics import settled_state

from sluicegate.batcher import LoopClock
from sluicegate.consumer.jobs import event_run

if TYPE_CHECKING:
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")


@pytest.mark.parametrize(
    "entry",
    [
        (b"n", b"7"),
        pytest.param((b"m", b"1"), marks=pytest.mark.long),
        pytest.param((b"n", None), marks=pytest.mark.long),
    ],
    ids=["changed", "added", "deleted"],
)
@pytest.mark.parametrize("is_undecodable", [False, True])
async def test_a_record_of_another_program(
    broker: EmbeddedKafka, entry: tuple[bytes, bytes | None], *, is_undecodable: bool
) -> None:
    """consumer/G30: it would be mistaken for an entry; also one whose header is not UTF-8."""
    made = await counted(broker)
    if is_undecodable:
        await produce_undecodable(broker, made.name, (entry[0], entry[1], True))
    else:
        await produce(broker, made.name, entry)
    await produce(broker, made.topic, (b"k", b"v"))
    told = await made.refused()
    assert "has a changed state" in told
    assert "written by another program" in told


async def test_a_topic_that_is_recreated_while_it_is_used(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its next commit would contain only the last changes: nothing more is committed, and the new
    claim is refused. The run does not end.
    """
    monkeypatch.setattr(event_run, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(event_run, "LOST_MOST", 0.1)
    made = await counted(broker)
    await produce(broker, made.topic, (b"k", b"v"))
    async with made.running() as consumer, asyncio.timeout(100):
        while (await stored(broker, made.group))[made.part].offset < 6:
            pass
        await delete_topic(broker, made.name)
        await new_topic(broker, name=made.name, settings={"cleanup.policy": "compact"})
        await produce(broker, made.topic, (b"k", b"v"))
        while "it was recreated" not in str(consumer.explain()):
            await LoopClock().sleep(0.01)
    assert "was recreated or has lost records" in caplog.text
    assert made.handled == [*range(7)]
    assert (await stored(broker, made.group))[made.part].offset == 6
    assert "it was recreated" in await made.refused()


@pytest.mark.long
async def test_a_topic_that_is_deleted_while_it_is_used(
    broker: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The commits fail, and the log names the topic."""
    made = await counted(broker)
    await produce(broker, made.topic, (b"k", b"v"))
    async with made.running(commit_timeout=0.5), asyncio.timeout(100):
        while (await stored(broker, made.group))[made.part].offset < 6:
            pass
        await delete_topic(broker, made.name)
        await produce(broker, made.topic, (b"k", b"v"))
        while "of the state was deleted" not in caplog.text:
            await LoopClock().sleep(0.01)
    assert (await stored(broker, made.group))[made.part].offset == 6


@pytest.mark.long
async def test_two_groups_that_share_a_topic(broker: EmbeddedKafka) -> None:
    """Both groups read an empty topic before either stores its start; neither accepts the entries
    of the other.
    """
    topic, name = await new_topic(broker), new_name("shared")
    await fill(broker, topic, 5)
    first, second = Counted(broker, topic), Counted(broker, topic)
    first.name = second.name = name
    async with proxied(broker) as left, proxied(broker) as right:
        starts = [each.hold(Api.END_TRANSACTION, "request") for each in (left, right)]
        async with (
            first.running(bootstrap=left.bootstrap),
            second.running(bootstrap=right.bootstrap),
            asyncio.timeout(100),
        ):
            for start in starts:
                await start.arrived.wait()
            for start in starts:
                start.open()
            for each in (first, second):
                while len(each.handled) < 5:
                    await LoopClock().sleep(0.01)
    for each, other in ((first, second), (second, first)):
        assert f"for the group '{other.group}'" in await each.refused()


@pytest.mark.long
async def test_a_state_with_deleted_entries_goes_on(broker: EmbeddedKafka) -> None:
    """The content of a state stays known through changes, deletions and restarts."""
    made = await counted(broker, 0)

    async def handle(context: EventContext) -> None:
        store, at = context.store, context.message.offset
        store.put(f"e{at % 3}", at)
        store.delete(f"e{(at + 1) % 3}")
        made.handled.append(at)

    made.handle = handle  # type: ignore[method-assign]
    for count in (4, 8, 12):
        await fill(broker, made.topic, 4)
        async with made.running(), asyncio.timeout(100):
            while len(made.handled) < count:
                await LoopClock().sleep(0.01)
    found = await settled_state(broker, made.name, made.group, made.part)
    assert found.state == {"e1": 10, "e2": 11}


class Packed:
    """Values as bytes."""

    column: Literal["json", "text", "bytea"] = "bytea"

    def encode(self, value: int) -> bytes:
        return b"#%d" % value

    def decode(self, stored: bytes) -> int:
        return int(stored[1:])


@pytest.mark.long
async def test_values_of_another_codec(broker: EmbeddedKafka) -> None:
    """The state is refused as a whole; no single event fails."""
    made = await counted(broker)
    assert "cannot decode the stored value of 'n'" in await made.refused(codec=Packed())
