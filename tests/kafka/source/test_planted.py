"""Three guards of the source, each with the loss that it prevents; without the guard the loss
occurs. White box: the guards that are removed.
"""

from __future__ import annotations
import __future__

import asyncio
import inspect
import textwrap
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import TopicPartition as ClientPartition
from aiokafka.errors import RequestTimedOutError
from aiokafka.structs import OffsetAndMetadata
from tests.kafka.source import kafka_help

from sluicegate.batcher import LoopClock
from sluicegate.consumer import Position, TopicPartition
from sluicegate.kafka import KafkaAccess, KafkaSource
from sluicegate.kafka.client.session import Session
from sluicegate.kafka.source.fetching import Fetcher
from sluicegate.kafka.source.membership import Membership
from sluicegate.testing.conformance.source.subject import ClaimReader, RecordingHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from sluicegate.consumer import SourceRecord
    from sluicegate.testing import EmbeddedKafka

SEEK_BACK = """\
        if records:
            self._session.seek(claim.partition, records[0].offset)
"""


class Member:
    """An open source with one claim, in a group from which others may remove it."""

    def __init__(self, broker: EmbeddedKafka, topic: str) -> None:
        self.broker = broker
        self.partition = TopicPartition(topic, 0)
        self.host = RecordingHost()
        self.client = kafka_help.new_name("client")
        self.source = KafkaSource(
            topic,
            bootstrap=KafkaAccess(broker.bootstrap, client_id=self.client),
            group=topic,
            session_timeout=30.0,
            rebalance_timeout=5.0,
            commit_timeout=2.0,
        )
        self.reader = ClaimReader(self.source, self.host)

    @property
    def coordinator(self) -> Any:
        """The coordinator of aiokafka."""
        sessions: Any = self.source._sessions
        return sessions._session._client._coordinator

    async def evict(self) -> None:
        """Remove it from the group and store 7 as another member would; it has not noticed yet."""
        group = self.partition.topic
        await kafka_help.remove_member(self.broker, group, self.client)
        await kafka_help.store(self.broker, group, {self.partition: Position(7)})

    async def hear(self) -> None:
        """Let it notice the eviction, and suspend until it has a new claim."""
        before = len(self.host.claims)
        await self.coordinator._do_heartbeat()
        await self.host.news.wait_for(lambda: len(self.host.claims) > before)

    async def stored(self) -> Position | None:
        """The position at the broker."""
        return (await kafka_help.stored(self.broker, self.partition.topic)).get(self.partition)


@asynccontextmanager
async def member(broker: EmbeddedKafka) -> AsyncIterator[Member]:
    """The only member of its group, with ten records to read."""
    topic = await kafka_help.new_topic(broker)
    await kafka_help.fill(broker, topic, 10)
    opened = Member(broker, topic)
    async with asyncio.timeout(20), opened.source.open(opened.host):
        await opened.host.wait_for_claims(1)
        yield opened


def without(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, lines: str) -> None:
    """Remove lines from a method."""
    method = getattr(owner, name)
    text = textwrap.dedent(inspect.getsource(method))
    assert lines in text
    code = compile(
        text.replace(lines, ""), "<planted>", "exec", __future__.annotations.compiler_flag
    )
    names: dict[str, Any] = {}
    exec(code, method.__globals__, names)
    monkeypatch.setattr(owner, name, names[name])


# -- the seek back ---------------------------------------------------------------------------------


async def records_taken_for_the_claim_before(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """The records of a new claim after a `take` of the old one waited for the rebalance and took
    records of the new assignment, as aiokafka's `getmany` may.
    """
    take = Session.take
    begun, go_on, taken = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def suspending(
        session: Session, partition: TopicPartition, most: int
    ) -> Sequence[SourceRecord]:
        if begun.is_set():
            return await take(session, partition, most)
        begun.set()
        await go_on.wait()
        while not (records := await take(session, partition, most)):
            await session.wait(1.0)
        taken.set()  # its waiter runs after this fetch has checked its claim again
        return records

    monkeypatch.setattr(Session, "take", suspending)
    async with member(broker) as reading:
        (old,) = reading.host.open
        fetch = asyncio.get_running_loop().create_task(reading.source.fetch([old], 10))
        await begun.wait()
        await kafka_help.remove_member(broker, reading.partition.topic, reading.client)
        await reading.hear()
        go_on.set()
        (new,) = reading.host.open
        await taken.wait()
        fetch.cancel()
        await kafka_help.fill(broker, reading.partition.topic, 1)
        await reading.reader.read_up_to(new, 11)
        return reading.reader.offsets(new)


async def test_records_that_were_taken_for_an_ended_claim_are_given_back(
    broker: EmbeddedKafka, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O-T8."""
    assert await records_taken_for_the_claim_before(broker, monkeypatch) == list(range(11))


async def test_without_the_seek_back_they_are_lost(
    broker: EmbeddedKafka, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ten are never delivered."""
    without(monkeypatch, Fetcher, "_take", SEEK_BACK)
    assert await records_taken_for_the_claim_before(broker, monkeypatch) == [10]


# -- the generation --------------------------------------------------------------------------------


async def stored_after_an_eviction(broker: EmbeddedKafka) -> Position | None:
    """The position stored once an evicted member, whose host would commit 4, has noticed the
    eviction.
    """
    async with member(broker) as evicted:
        evicted.host.will_answer({evicted.partition: Position(4)})
        await evicted.evict()
        await evicted.hear()
        return await evicted.stored()


async def test_an_evicted_member_does_not_commit_into_its_empty_group(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """consumer/C:C3, consumer/C:R2: the position stored by another member stays."""
    assert await stored_after_an_eviction(broker) == Position(7)


async def test_without_the_check_of_the_generation_its_commit_is_taken(
    broker: EmbeddedKafka, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka accepts any commit into a group without members."""
    monkeypatch.setattr(Membership, "is_current", True)
    assert await stored_after_an_eviction(broker) == Position(4)


# -- the one attempt -------------------------------------------------------------------------------


async def stored_after_a_lost_answer(broker: EmbeddedKafka) -> Position | None:
    """The position stored after a commit of 4 whose answer is lost while the member is evicted."""
    async with member(broker) as evicted:
        (old,) = evicted.host.open
        coordinator, sent, go_on = evicted.coordinator, asyncio.Event(), asyncio.Event()
        send: Callable[..., Awaitable[None]] = coordinator._do_commit_offsets

        async def losing(*arguments: object) -> None:
            if sent.is_set():
                return await send(*arguments)
            sent.set()
            await go_on.wait()
            raise RequestTimedOutError

        coordinator._do_commit_offsets = losing
        commit = asyncio.get_running_loop().create_task(evicted.source.commit({old: Position(4)}))
        await sent.wait()
        await evicted.evict()
        await evicted.hear()
        go_on.set()
        with suppress(RequestTimedOutError):
            assert list(await commit) == []
        return await evicted.stored()


async def test_a_commit_without_an_answer_is_not_sent_again(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """consumer/C:C3, consumer/C:C6: the position that another member stored meanwhile stays."""
    assert await stored_after_a_lost_answer(broker) == Position(7)


async def test_a_second_attempt_is_accepted_under_the_next_generation(
    broker: EmbeddedKafka, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With aiokafka's own `commit`, which retries."""

    async def insisting(session: Session, positions: Mapping[TopicPartition, Position]) -> None:
        await session._client.commit(
            {ClientPartition(*each): OffsetAndMetadata(*at) for each, at in positions.items()}
        )

    monkeypatch.setattr(Session, "commit", insisting)
    assert await stored_after_a_lost_answer(broker) == Position(4)
