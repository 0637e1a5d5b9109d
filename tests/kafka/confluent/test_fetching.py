"""The content of a fetch: shares of partitions, claims that are not requested, offsets out of
range. White box: the reader of partitions and its maps of offsets.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.aio import AIOConsumer
from tests.kafka.confluent.confluent_help import source_of
from tests.kafka.source.kafka_help import (
    delete_records,
    fill,
    new_name,
    new_topic,
    produce,
    store,
    stored,
)
from tests.kafka.source.storm_help import member

from sluicegate.consumer import Position, TopicPartition
from sluicegate.consumer.progress.offset_map import encode
from sluicegate.kafka import KafkaSource
from sluicegate.kafka.confluent import fetching
from sluicegate.kafka.confluent.membership import ArrivingClaim
from sluicegate.kafka.confluent.reader import Delivered, runs
from sluicegate.testing.conformance.source.subject import ClaimReader, HeldClaim, RecordingHost

if TYPE_CHECKING:
    from tests.kafka.source.own_help import OwnKafka

    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")

OF = TopicPartition("t", 0)


def message(partition: int, offset: int, topic: str = "t") -> Message:
    return Message(topic, partition, offset, b"k", b"v%d" % offset, [("h", b"1")], None, (1, 17))


def test_messages_are_taken_apart_by_partition_in_their_order() -> None:
    given = [message(0, 4), message(0, 6), message(1, 0), message(0, 7, "u"), message(0, 8)]
    told = [(run.partition, [each.offset for each in run.records]) for run in runs(given)]
    assert told == [
        (OF, [4, 6]),
        (TopicPartition("t", 1), [0]),
        (TopicPartition("u", 0), [7]),
        (OF, [8]),
    ]
    assert [run.next_offset for run in runs(given)] == [7, 1, 8, 9]
    assert [*runs([])] == []


def test_a_record_has_what_its_message_has() -> None:
    [run] = runs([message(0, 4)])
    [record] = run.records
    assert record == Delivered(4, b"k", b"v4", 17, [("h", b"1")], OF)
    assert (record.topic, record.partition, record.headers) == ("t", 0, [("h", b"1")])
    assert repr(record) == "Delivered(t/0@4)"


def test_the_end_of_a_partition_and_an_error_stand_between_the_records() -> None:
    end = Message("t", 0, 9, error=KafkaError(KafkaError._PARTITION_EOF))
    bad = Message("t", 0, 5, error=KafkaError(KafkaError._BAD_MSG))
    told = [*runs([message(0, 4), end, message(1, 0), bad])]
    assert [(len(run.records), run.next_offset) for run in told] == [(1, 5), (0, 9), (1, 1), (0, 0)]
    assert [run.error is None for run in told] == [True, True, True, False]


def test_what_has_arrived_waits_until_it_is_taken_in_shares() -> None:
    owned = ArrivingClaim(HeldClaim(OF, Position(4)), 4)
    for run in runs([message(0, 4), message(0, 5), message(0, 9)]):
        owned.arrive(run)
    end = Message("t", 0, 12, error=KafkaError(KafkaError._PARTITION_EOF))
    for run in runs([end, end]):
        owned.arrive(run)
    assert (owned.count, owned.ahead, owned.at_end) == (3, 12, True)
    taken = [owned.take(2, 100) for _ in range(2)]
    assert [[each.offset for each in fetched.records] for fetched in taken] == [[4, 5], [9]]
    assert [fetched.next_offset for fetched in taken] == [6, 12]
    assert not owned.has_news
    owned.move(20)
    assert (owned.next_offset, owned.ahead, owned.has_to_move) == (20, 20, True)


async def test_partitions_with_records_are_read_in_equal_shares(broker: EmbeddedKafka) -> None:
    topic = await new_topic(broker, 4)
    for partition in (1, 2):
        await fill(broker, topic, 3_000, partition=partition)
    source = source_of(broker, topic, new_name("group"))
    host = RecordingHost()
    async with source.open(host), asyncio.timeout(100):
        claims = await host.wait_for_claims(4)
        reader = ClaimReader(source, host)
        for claim in claims:
            if claim.partition.partition in (1, 2):
                await reader.read([claim], 1)  # both have arrived by then
        counts: list[dict[int, int]] = []
        while sum(len(reader.records(claim)) for claim in claims) < 6_000:
            fetched = await source.fetch(claims, 200) or []
            reader.check(fetched, claims, 200)
            counts.append({each.claim.partition.partition: len(each.records) for each in fetched})
        assert counts.count({1: 100, 2: 100}) >= 20


async def test_a_claim_that_is_not_asked_for_holds_back_none_and_loses_nothing(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """consumer/C:B2: it is no longer read when many of its records wait, and continues from there
    later.
    """
    monkeypatch.setattr(fetching, "AHEAD", 300)
    topic = await new_topic(broker, 2)
    for partition in (0, 1):
        await fill(broker, topic, 2_000, partition=partition)
    source = source_of(broker, topic, new_name("group"))
    host = RecordingHost()
    async with source.open(host), asyncio.timeout(100):
        await host.wait_for_claims(2)
        asked, other = (host.claim_of(TopicPartition(topic, each)) for each in (0, 1))
        reader = ClaimReader(source, host)
        await reader.read([asked], 2_000)
        await fill(broker, topic, 10, partition=0)
        await reader.read([asked], 2_010)
        await reader.read([other], 2_000)
        await produce(broker, topic, (b"k", b"v"), partition=1)
        await reader.read([asked, other], 4_011)
        assert reader.offsets(other) == list(range(2_001))


async def test_large_records_are_not_read_far_ahead(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """consumer/C:B1: the client's queue, which is limited in bytes, holds the others back."""
    monkeypatch.setattr(fetching, "AHEAD_BYTES", 100_000)
    topic = await new_topic(broker, 2)
    large = [(b"k", b"x" * 10_000)] * 300
    for partition in (0, 1):
        await produce(broker, topic, *large, partition=partition)
    client = {"fetch.message.max.bytes": 50_000, "queued.max.messages.kbytes": 200}
    source = source_of(broker, topic, new_name("group"), client=client)
    host = RecordingHost()
    async with source.open(host), asyncio.timeout(100):
        await host.wait_for_claims(2)
        asked, other = (host.claim_of(TopicPartition(topic, each)) for each in (0, 1))
        reader = ClaimReader(source, host)
        await reader.read([asked], 300, most=1_000)
        sessions: Any = source._sessions
        waiting = sessions._session.membership.owned(other).count
        assert waiting < 100
        await reader.read([other], 300)
        assert reader.offsets(other) == list(range(300))


async def test_a_session_that_dies_is_followed_by_another_one_and_told(
    broker: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The claims end and begin again; a waiting fetch ends with them."""
    topic = await new_topic(broker)
    await fill(broker, topic, 3)
    source = source_of(broker, topic, new_name("group"))
    host = RecordingHost()
    async with source.open(host), asyncio.timeout(100):
        (first,) = await host.wait_for_claims(1)
        await ClaimReader(source, host).read([first], 3)
        sessions: Any = source._sessions
        sessions._session.on_error(KafkaError(KafkaError._FATAL, "as a bug would", True), None)
        waiting = asyncio.ensure_future(source.fetch([first], 1))
        await host.news.wait_for(lambda: first.is_closed)
        waiting.cancel()
        (second,) = await host.wait_for_claims(1)
        await ClaimReader(source, host).read([second], 3)
        await host.news.wait_for(lambda: host.reports[-1] is None)
    assert any("as a bug would" in (trouble or "") for trouble in host.reports)


async def test_records_of_a_cancelled_fetch_are_in_the_next_one(broker: EmbeddedKafka) -> None:
    """Including those that the client's thread returns after the cancellation."""
    topic = await new_topic(broker)
    source = source_of(broker, topic, new_name("group"))
    host = RecordingHost()
    async with source.open(host), asyncio.timeout(100):
        claims = await host.wait_for_claims(1)
        reader = ClaimReader(source, host)
        for turn in range(10):
            waiting = asyncio.ensure_future(source.fetch(claims, 100))
            for _ in range(turn):
                await asyncio.sleep(0)
            waiting.cancel()
            await produce(broker, topic, (b"k", b"v"))
            if not waiting.cancelled() and waiting.done() and waiting.result():
                reader.check(waiting.result() or (), claims, 100)
            await reader.read(claims, turn + 1)
        assert reader.offsets(claims[0]) == list(range(10))


async def fetched_of(reader: ClaimReader, claims: list[HeldClaim]) -> None:
    """Fetch from these claims until they change, as a consumer does."""
    fetching = asyncio.create_task(reader.fetch(claims, 100))
    changed = asyncio.create_task(reader.host.news.wait_for(lambda: reader.host.open != claims))
    await asyncio.wait([fetching, changed], return_when=asyncio.FIRST_COMPLETED)
    for task in (fetching, changed):
        task.cancel()
    await asyncio.wait([fetching, changed])
    if not fetching.cancelled():
        fetching.result()


async def test_a_position_that_is_no_longer_retained_continues_at_the_start_point(
    broker: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The gap is reported; a position behind the end begins another claim."""
    topic, group = await new_topic(broker, 2), new_name("group")
    for partition in (0, 1):
        await fill(broker, topic, 20, partition=partition)
    await delete_records(broker, topic, 10)
    await store(
        broker,
        group,
        {TopicPartition(topic, 0): Position(3), TopicPartition(topic, 1): Position(99)},
    )
    source = source_of(broker, topic, group)
    host = RecordingHost()
    async with source.open(host), asyncio.timeout(100):
        await host.wait_for_claims(2)
        reader = ClaimReader(source, host)
        while sum(len(reader.records(claim)) for claim in host.claims) < 30:
            await fetched_of(reader, host.open)
        gone, other = (host.claim_of(TopicPartition(topic, each)) for each in (0, 1))
        assert reader.offsets(gone) == list(range(10, 20))
        assert reader.offsets(other) == list(range(20))
        assert len(host.claims) == 3
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert any(
        "the next offset, 3, is no longer retained (10 is the first" in each for each in told
    )
    assert any("ends at 20, before the next offset, 99" in each for each in told)


@pytest.mark.long
async def test_a_position_whose_record_was_replaced_begins_again_at_the_start_point(
    own_broker: OwnKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an unclean election: the leader's epoch before the position is another one. A record
    that is the same is not delivered again, and one that was deleted proves nothing.
    """
    topic, group = await new_topic(own_broker, 3), new_name("group")
    for number in range(3):
        await fill(own_broker, topic, 5, partition=number)
    own_broker.restart()  # a new epoch begins
    for number in range(3):
        await fill(own_broker, topic, 5, partition=number)
    await delete_records(own_broker, topic, 8, partition=2)
    member = AIOConsumer({"bootstrap.servers": own_broker.bootstrap, "group.id": group})
    at = [
        ClientPartition(topic, 0, 8, leader_epoch=0),
        ClientPartition(topic, 1, 5, leader_epoch=0),
    ]
    at.append(ClientPartition(topic, 2, 8, leader_epoch=0))
    await member.commit(offsets=at, asynchronous=False)
    await member.close()
    source = source_of(own_broker, topic, group)
    host = RecordingHost()
    async with source.open(host), asyncio.timeout(100):
        await host.wait_for_claims(3)
        reader = ClaimReader(source, host)
        while sum(len(reader.records(claim)) for claim in host.claims) < 17:
            await fetched_of(reader, host.open)
        claims = [host.claim_of(TopicPartition(topic, each)) for each in range(3)]
        assert [reader.offsets(each) for each in claims] == [[*range(10)], [*range(5, 10)], [8, 9]]
        assert list(await source.commit({claims[0]: Position(10)})) == [claims[0]]
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert len(told) == 1
    assert f"{topic}/0 was recreated, or truncated before the next offset" in told[0]


async def test_a_group_moves_between_the_clients_with_its_map(broker: EmbeddedKafka) -> None:
    """consumer/C:N1: from librdkafka's client, which writes a NUL behind it, to aiokafka's and
    back.
    """
    topic, group = await new_topic(broker), new_name("group")
    await fill(broker, topic, 30, keys=30)
    at = Position(3, encode(3, [(5, 20)]).text)
    source = source_of(broker, topic, group)
    host = RecordingHost()
    async with source.open(host), asyncio.timeout(100):
        (claim,) = await host.wait_for_claims(1)
        assert list(await source.commit({claim: at})) == [claim]
        assert list(await source.commit({claim: Position(2)})) == [], "it would go back"
    assert await stored(broker, group) == {claim.partition: Position(3, at.metadata + "\0")}
    other = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, session_timeout=30.0)
    async with member(other) as reader, asyncio.timeout(100):
        await reader.handled_count(12)
        await reader.stored(30)
    assert sorted(reader.offsets) == [3, 4, *range(20, 30)]
    assert await stored(broker, group) == {claim.partition: Position(30)}
