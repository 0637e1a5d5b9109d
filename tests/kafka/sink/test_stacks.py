"""`KafkaSink` as a dead-letter target, in combinators, and with an id that a broker has forgotten.
White box: a sealed batch of the producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.kafka.sink.sink_help import Written, items
from tests.kafka.source.kafka_help import new_topic
from tests.kafka.source.storm_help import log_lines, run

from sluicegate import (
    Batch,
    Batcher,
    DeadLetter,
    FanOut,
    Limits,
    PermanentError,
    WriteResult,
    stack,
)
from sluicegate.consumer import TopicPartition
from sluicegate.kafka import KafkaSink
from sluicegate.kafka.client.producer import SealedRecords
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka


async def odd_only(batch: Batch[int]) -> WriteResult:
    """Refuse even numbers."""
    refused = {i: PermanentError("even") for i, item in enumerate(batch) if item % 2 == 0}
    return WriteResult.failed(batch, refused)


def test_refused_items_become_letters_in_a_topic(broker: EmbeddedKafka) -> None:
    """Each with its item and its error, as in any other target."""

    async def scenario() -> None:
        topic = await new_topic(broker)
        letters = KafkaSink(topic, bootstrap=broker.bootstrap)
        async with Batcher(stack(odd_only, DeadLetter(letters))) as batcher:
            await batcher.add_many(range(10))
        assert batcher.report is not None
        assert (batcher.report.tally.delivered, batcher.report.tally.dead_lettered) == (5, 5)
        found = await items(broker, topic)
        assert [each["item"] for each in found] == [0, 2, 4, 6, 8]
        assert all("even" in str(each) for each in found)

    run(scenario())


def test_an_unfit_item_is_a_letter_and_both_branches_have_the_others(
    broker: EmbeddedKafka,
) -> None:
    """A fan-out to two topics, with a dead letter for an item that one of them refuses."""

    async def scenario() -> None:
        first, second = await new_topic(broker), await new_topic(broker)
        letters = MemorySink[Any]()
        both = FanOut(
            KafkaSink(first, bootstrap=broker.bootstrap),
            KafkaSink(second, bootstrap=broker.bootstrap, value=repr),
        )
        async with Batcher(stack(both, DeadLetter(letters)), limits=Limits(max_items=4)) as batcher:
            await batcher.add_many([1, float("nan"), 2, 3])
        assert batcher.report is not None
        assert (batcher.report.tally.delivered, batcher.report.tally.dead_lettered) == (3, 1)
        assert len(letters.items) == 1
        assert await items(broker, first) == [1, 2, 3]

    run(scenario())


def test_a_forgotten_producer_gets_a_new_id_and_nothing_is_lost(broker: EmbeddedKafka) -> None:
    """The broker detects a gap in the sequence: the write fails, and the next one starts with a new
    id. This is logged.
    """

    async def scenario() -> None:
        topic = await new_topic(broker)
        async with log_lines() as log, KafkaSink(topic, bootstrap=broker.bootstrap) as sink:
            assert await Written([0, 1]).write(sink) == {}
            session: Any = sink._session
            partition = TopicPartition(topic, 0)
            session.log(partition).mark_stored(SealedRecords(partition, b"", 3))
            written = Written([2, 3])
            assert {*await written.write(sink)} == {0, 1}
            assert await written.write(sink) == {}
            assert await Written([4]).write(sink) == {}
            assert [each for each in log.lines() if "has forgotten this producer" in each]
        assert await items(broker, topic) == [0, 1, 2, 3, 4]

    run(scenario())
