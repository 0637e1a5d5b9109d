"""Kafka records and the source's offsets commit together.

White box: transactions without a consumer, and the map beside a position.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from kafka_transaction_child import row_of
from kept_topic import assert_once_and_in_order, kept_topic, running
from tests.kafka.source.kafka_help import fill, new_name, new_topic, produce, store
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.source.storm_help import log_lines

from sluicegate import (
    Capabilities,
    ConfigError,
    PermanentError,
    RowBatch,
    ToDeadLetter,
    send,
    transaction,
)
from sluicegate._core.positions import PositionUnit
from sluicegate.consumer import Commits, Poison, Position
from sluicegate.consumer.progress.offset_map import encode
from sluicegate.errors import PositionLost, TransactionLost
from sluicegate.sinks import Unit

if TYPE_CHECKING:
    from kept_topic import KeptTopic
    from tests.kafka.source.own_help import OwnKafka

    from sluicegate import Batch, Message
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")


def row(at: int, part: int = 0) -> dict[str, Any]:
    """The row that marks a partition."""
    return {"part": part, "at": at, "key": "k"}


# -- the flow --------------------------------------------------------------------------------------


async def test_each_record_is_committed_once_with_its_offset(broker: EmbeddedKafka) -> None:
    kept = await kept_topic(broker, 2)
    counts = {0: 300, 1: 120}
    for part, count in counts.items():
        await fill(broker, kept.source_topic, count, partition=part)
    async with running(kept.source(), kept.sink()) as flow:
        await flow.stored(counts)
    assert_once_and_in_order(await kept.readable(), counts)
    assert await kept.stored() == {part: Position(count) for part, count in counts.items()}


async def test_a_restart_continues_behind_the_committed_offset(broker: EmbeddedKafka) -> None:
    kept = await kept_topic(broker)
    for count in (40, 70):
        await fill(broker, kept.source_topic, count - (40 if count > 40 else 0))
        async with running(kept.source(), kept.sink()) as flow:
            await flow.stored({0: count})
        assert_once_and_in_order(await kept.readable(), {0: count})


async def test_offset_and_map_of_an_earlier_consumer_are_carried_on(broker: EmbeddedKafka) -> None:
    """A map of settled records beyond the offset prevents repeated writes."""
    kept = await kept_topic(broker)
    await fill(broker, kept.source_topic, 20)
    settled = encode(5, [(7, 10)])
    await store(broker, kept.group, {kept.at(0): Position(5, settled.text)})
    async with running(kept.source(), kept.sink()) as flow:
        await flow.stored({0: 20})
    assert sorted(each.at for each in await kept.readable()) == [5, 6, *range(10, 20)]


@pytest.mark.parametrize(
    ("options", "commits"),
    [
        ({"commits": Commits(every=5.0, after=10)}, {6}),
        ({"commits": Commits(every=5.0, after=500, bytes=40)}, {3}),
        ({"commits": Commits(every=0.3, after=500)}, {1, 2, 3}),  # a slow machine needs more
    ],
)
async def test_a_transaction_ends_by_count_bytes_or_age(
    broker: EmbeddedKafka, options: dict[str, Any], commits: set[int]
) -> None:
    """consumer/G22."""
    kept = await kept_topic(broker)
    await produce(broker, kept.source_topic, *[(b"k", b"12")] * 60)
    async with proxied(broker) as proxy:
        sink = kept.sink(proxy.bootstrap, request_timeout=30.0)  # no request is repeated
        async with running(kept.source(), sink, **options) as flow:
            await flow.stored({0: 60})
        assert proxy.count(Api.END_TRANSACTION, "request") in commits
    assert_once_and_in_order(await kept.readable(), {0: 60})


async def test_a_spoiled_record_has_its_letter_before_the_offset_passes_it(
    broker: EmbeddedKafka,
) -> None:
    """A record whose transform fails, one sent to the dead letters, and one whose row is
    refused.
    """
    kept = await kept_topic(broker)
    await fill(broker, kept.source_topic, 100)
    letters = Letters(kept)

    def transform(message: Message) -> Any:
        if message.offset == 0:
            raise ValueError("spoiled")
        if message.offset == 50:
            return ToDeadLetter("not wanted")
        made = row_of(message)
        return {**made, "bad": object()} if message.offset == 70 else made

    async with running(
        kept.source(), kept.sink(), transform=transform, poison=Poison("skip", dead_letters=letters)
    ) as flow:
        await flow.stored({0: 100})
    assert [offset for offset, _ in letters.written] == [0, 50, 70]
    assert all(stored <= offset for offset, stored in letters.written)
    made = await kept.readable()
    assert sorted(each.at for each in made) == sorted({*range(100)} - {0, 50, 70})


class Letters:
    """A store of dead letters that reads the committed offset before each write."""

    capabilities = Capabilities()

    def __init__(self, kept: KeptTopic) -> None:
        self._kept = kept
        self.written: list[tuple[int, int]] = []
        """The offset of each letter's record, and the committed offset."""

    async def write(self, batch: Batch[Any]) -> None:
        """Store letters."""
        for letter in batch:
            stored = (await self._kept.stored()).get(0, Position(0))
            self.written.append((letter.item["offset"], stored.offset))


async def test_skipped_records_leave_no_row_and_their_offset_is_passed(
    broker: EmbeddedKafka,
) -> None:
    kept = await kept_topic(broker)
    await fill(broker, kept.source_topic, 100)
    spoiled = {0, 50, 51, 99}

    def transform(message: Message) -> Any:
        made = row_of(message)
        return {**made, "bad": object()} if message.offset in spoiled else made

    async with running(kept.source(), kept.sink(), transform=transform, poison="skip") as flow:
        await flow.stored({0: 100})
    made = await kept.readable()
    assert sorted(each.at for each in made) == sorted({*range(100)} - spoiled)
    assert await kept.stored() == {0: Position(100)}


async def test_an_abort_is_invisible_and_its_records_come_again(broker: EmbeddedKafka) -> None:
    """A refused row ends the transaction in which other rows were already sent."""
    kept = await kept_topic(broker)
    await fill(broker, kept.source_topic, 60)

    def transform(message: Message) -> Any:
        made = row_of(message)
        return {**made, "text": "x" * 2_000_000} if message.offset == 40 else made

    async with running(kept.source(), kept.sink(), transform=transform, poison="skip") as flow:
        await flow.stored({0: 60})
    once = [at for at in range(60) if at != 40]
    assert sorted(each.at for each in await kept.readable()) == once
    seen = Counter(each.at for each in await kept.readable("read_uncommitted"))
    assert max(seen.values()) > 1, "something was sent, aborted, and sent again"


async def test_two_groups_and_two_members_make_each_record_once_per_group(
    broker: EmbeddedKafka,
) -> None:
    kept = await kept_topic(broker, 4)
    counts = dict.fromkeys(range(4), 100)
    for part, count in counts.items():
        await fill(broker, kept.source_topic, count, partition=part)
    other = kept._replace(group=new_name("other"))
    async with (
        running(kept.source(), kept.sink()) as first,
        running(kept.source(), kept.sink()) as second,
        running(other.source(), other.sink()) as third,
    ):
        await asyncio.gather(first.watch.owns(2), second.watch.owns(2), third.stored(counts))
        for part in range(4):
            await fill(broker, kept.source_topic, 50, partition=part)
        counts = dict.fromkeys(range(4), 150)
        await third.stored(counts)
        for part in range(4):
            owner = first if kept.at(part) in first.watch.owned else second
            await owner.stored({part: 150})
    made = Counter((each.part, each.at) for each in await kept.readable())
    assert made == dict.fromkeys([(part, at) for part in counts for at in range(150)], 2)


# -- the destination -------------------------------------------------------------------------------


async def test_a_claim_fences_the_owner_before(broker: EmbeddedKafka) -> None:
    kept = await kept_topic(broker)
    unit = PositionUnit(kept.group, kept.at(0), Position(1))
    async with kept.sink() as first, kept.sink() as second:
        assert await first.claim_positions(kept.group, [kept.at(0)]) == {}
        with pytest.raises(PositionLost, match="another owner has claimed it"):
            async with transaction(first, unit) as tx:
                assert not await send(tx, RowBatch([row(0)]))
                await second.claim_positions(kept.group, [kept.at(0)])
        async with transaction(second, unit) as tx:
            assert not await send(tx, RowBatch([row(7)]))
        assert await first.store_positions(kept.group, {kept.at(0): Position(9)}) == []
        with pytest.raises(PositionLost):
            await first.read_positions(kept.group, [kept.at(0)])
        assert await second.read_positions(kept.group, [kept.at(0)]) == {kept.at(0): Position(1)}
        assert await second.store_positions(kept.group, {kept.at(0): Position(9, "")}) == [
            kept.at(0)
        ]
    assert [each.at for each in await kept.readable()] == [7]
    assert await kept.stored() == {0: Position(9)}


async def test_a_claim_reads_the_offset_behind_a_commit_that_is_under_way(
    broker: EmbeddedKafka,
) -> None:
    kept = await kept_topic(broker)
    unit = PositionUnit(kept.group, kept.at(0), Position(3, ""))
    async with kept.sink() as first, kept.sink() as second:
        await first.claim_positions(kept.group, [kept.at(0)])
        for _ in range(10):
            async with transaction(first, unit) as tx:
                await send(tx, RowBatch([row(0)]))
            assert await second.claim_positions(kept.group, [kept.at(0)]) == {
                kept.at(0): Position(3)
            }
            first, second = second, first
    assert len(await kept.readable()) == 10


async def test_left_by_an_exception_nothing_of_it_is_readable(broker: EmbeddedKafka) -> None:
    kept = await kept_topic(broker)
    unit = PositionUnit(kept.group, kept.at(0), Position(1))
    async with kept.sink() as sink:
        await sink.claim_positions(kept.group, [kept.at(0)])
        ended: list[Any] = []
        for error in (ValueError("no"), asyncio.CancelledError()):
            with pytest.raises(type(error)):
                async with transaction(sink, unit) as left:
                    assert not await send(left, RowBatch([row(0)]))
                    ended.append(left)
                    raise error
            errors = await send(ended.pop(), RowBatch([row(0)]))
            assert isinstance(errors[0], TransactionLost)
        assert await kept.readable() == []
        assert await kept.stored() == {}
        async with transaction(sink, unit) as tx:
            errors = await send(tx, RowBatch([row(1), {"bad": object()}, row(2)]))
            assert list(errors) == [1]
            assert isinstance(errors[1], PermanentError)
    assert [each.at for each in await kept.readable()] == [1, 2]
    assert len(await kept.readable("read_uncommitted")) == 4


async def test_units_are_refused_with_the_reason(broker: EmbeddedKafka) -> None:
    kept = await kept_topic(broker)
    async with kept.sink() as sink:
        for unit in (Unit(application="a", version=1), None):
            with pytest.raises(ConfigError, match="a topic has no place to record"):
                async with transaction(sink, unit):
                    pass


async def test_a_topic_that_the_cluster_lacks_has_no_offsets(broker: EmbeddedKafka) -> None:
    """The source is on another cluster than the sink."""
    kept = await kept_topic(broker)
    there = kept._replace(source_topic=new_name("elsewhere"))
    async with there.sink(request_timeout=0.2) as sink:
        await sink.claim_positions(there.group, [there.at(0)])
        with pytest.raises(Exception, match="source and sink must be on one cluster"):
            async with transaction(sink, PositionUnit(there.group, there.at(0), Position(1))) as tx:
                await send(tx, RowBatch([row(0)]))
    assert await kept.readable() == []


@pytest.mark.long
async def test_a_destination_on_another_cluster_is_told(
    broker: EmbeddedKafka, own_broker: OwnKafka
) -> None:
    """Each cluster has its own offsets of the group."""
    kept = await kept_topic(broker)
    there = kept._replace(broker=own_broker)
    await new_topic(own_broker, name=kept.topic)
    await new_topic(own_broker, name=kept.source_topic)
    await fill(broker, kept.source_topic, 5)
    await store(own_broker, kept.group, {kept.at(0): Position(3)})
    async with log_lines() as log, running(kept.source(), there.sink()):
        await log.wait("both have to be on one cluster", logging.WARNING)
    assert await there.readable() == []
