"""B-T40: keys, values, headers, times and partitions, as an independent consumer reads them. White
box: the encoding of items, and the waves of a batch with keys.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kafka.sink.sink_help import Written, read
from tests.kafka.source.kafka_help import new_name, new_topic, producer_of
from tests.kafka.source.storm_help import run

from sluicegate import Batcher, Limits, Outcome, PermanentError, RefusedError
from sluicegate._core.values.encoding import to_json
from sluicegate.consumer import TopicPartition
from sluicegate.errors import KeyStopped
from sluicegate.kafka import KafkaSink
from sluicegate.kafka.sink.places import waves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluicegate.testing import EmbeddedKafka

ID = UUID("12345678-1234-5678-1234-567812345678")
KEYS: dict[Any, bytes] = {
    b"\xff\x00": b"\xff\x00",
    "für": "für".encode(),
    "": b"",
    7: b"7",
    ID: str(ID).encode(),
    ("a", 1): b'["a",1]',
    True: b"true",
}


def test_keys_of_a_batcher_are_the_keys_of_its_records(broker: EmbeddedKafka) -> None:
    """Bytes unchanged, text in UTF-8, anything else as JSON; the details are the positions of the
    records.
    """

    async def scenario() -> None:
        topic = await new_topic(broker, 4)
        sink = KafkaSink(topic, bootstrap=broker.bootstrap)
        keys = [*KEYS] * 3
        batcher = Batcher(sink, key=keys.__getitem__, limits=Limits(max_items=50, workers=4))
        async with batcher:
            receipts = [await batcher.submit(each) for each in range(len(keys))]
            assert {await each for each in receipts} == {Outcome.DELIVERED}
        found = await read(broker, topic)
        assert {each.item: each.key for each in found} == dict(
            enumerate(map(KEYS.__getitem__, keys))
        )
        assert {each.item: each.at for each in found} == dict(
            enumerate(receipt.detail for receipt in receipts)
        )
        for key in KEYS.values():
            assert len({each.at.partition for each in found if each.key == key}) == 1

    run(scenario())


def test_a_key_is_where_other_producers_put_it(broker: EmbeddedKafka) -> None:
    """The same as aiokafka's own producer, for short and long keys."""

    async def scenario() -> None:
        topic = await new_topic(broker, 7)
        keys = [b"%d" % each * (1 + each % 60) for each in range(200)]
        async with producer_of(broker) as producer:
            for key in keys:
                await producer.send(topic, b"1", key=key)
        written = Written(keys)
        async with KafkaSink(
            topic, bootstrap=broker.bootstrap, key=lambda key: key, value=lambda _: b"2"
        ) as sink:
            assert await written.write(sink) == {}
        found = await read(broker, topic)
        theirs = {each.key: each.at.partition for each in found if each.value == b"1"}
        ours = {each.key: each.at.partition for each in found if each.value == b"2"}
        assert ours == theirs
        assert len({*ours.values()}) == 7

    run(scenario())


def test_all_parts_of_a_record_are_given_by_functions(broker: EmbeddedKafka) -> None:
    """Headers as a mapping or pairs, times with a zone or in milliseconds, tombstones, partitions."""

    async def scenario() -> None:
        first, second = await new_topic(broker, 3), await new_topic(broker, 1)
        at = datetime(2026, 5, 1, 12, 0, 0, 123_000, tzinfo=UTC)
        given: list[dict[str, Any]] = [
            {"t": first, "k": "a", "v": b"x", "h": {"one": b"1", "none": None}, "s": at, "p": 2},
            {"t": second, "k": "b", "v": "y", "h": [("one", "1"), ("one", b"2")], "s": 7, "p": 0},
            {"t": first, "k": "c", "v": None, "h": None, "s": None, "p": None},
        ]
        written = Written(given)
        async with KafkaSink(
            lambda item: item["t"],
            bootstrap=broker.bootstrap,
            key="k",
            value=lambda item: item["v"],
            headers=lambda item: item["h"],
            timestamp=lambda item: item["s"],
            partition=lambda item: item["p"],
        ) as sink:
            assert await written.write(sink) == {}
        found = {each.at: each for each in await read(broker, first) + await read(broker, second)}
        one, two, three = (found[at] for at in written.details())
        milliseconds = round(at.timestamp() * 1000)
        assert one[1:] == (b"a", b"x", (("one", b"1"), ("none", None)), milliseconds)
        assert two[1:] == (b"b", b"y", (("one", b"1"), ("one", b"2")), 7)
        assert three[1:4] == (b"c", None, ())
        assert (one.at.partition, two.at.topic, three.timestamp > milliseconds) == (2, second, True)

    run(scenario())


UNFIT: dict[str, Any] = {
    "a value without JSON": {"v": float("nan")},
    "a key without JSON": {"k": object()},
    "a key that is no text": {"k": "\ud800"},
    "a key that is missing": {"k": ...},
    "a value of another type": {"raw": 7},
    "a tombstone without a key": {"k": None, "raw": None},
    "a header of another type": {"h": {"name": 7}},
    "a header without a name": {"h": [("", b"1")]},
    "a header's name that is no text": {"h": {"\ud800": b"1"}},
    "headers that are none": {"h": 7},
    "a time without a zone": {"s": datetime(2026, 5, 1)},
    "a time before 1970": {"s": -1},
    "a time that is too far": {"s": 1 << 63},
    "a time of another type": {"s": "now"},
    "a partition of another type": {"p": "0"},
    "a partition that is not there": {"p": 9},
    "a topic with another name": {"t": "not a topic"},
    "no topic": {"t": None},
}


@pytest.mark.parametrize("name", UNFIT)
def test_an_item_that_cannot_become_a_record_fails_alone(broker: EmbeddedKafka, name: str) -> None:
    """Its neighbours are delivered in the same write."""

    async def scenario() -> None:
        topic = await new_topic(broker, 1)
        normal: dict[str, Any] = {"t": topic, "k": "a", "v": 1, "h": None, "s": None, "p": None}
        unfit = {**normal, **UNFIT[name]}
        if unfit["k"] is ...:
            del unfit["k"]
        written = Written([{**normal, "v": 1}, unfit, {**normal, "v": 2}])
        async with KafkaSink(
            lambda item: item["t"],
            bootstrap=broker.bootstrap,
            key="k",
            value=lambda item: item["raw"] if "raw" in item else to_json(item["v"]),
            headers=lambda item: item["h"],
            timestamp=lambda item: item["s"],
            partition=lambda item: item["p"],
        ) as sink:
            errors = await written.write(sink)
        assert {index: type(error) for index, error in errors.items()} == {1: PermanentError}
        assert [each.item for each in await read(broker, topic)] == [1, 2]

    run(scenario())


def test_bytes_and_other_items_may_be_in_one_batch(broker: EmbeddedKafka) -> None:
    """Bytes unchanged, beside JSON and an item that is neither."""

    async def scenario() -> None:
        topic = await new_topic(broker)
        for each in ([b"\xff", {"a": 1}], [b"\xff", {"a": 1}, float("nan")]):
            written = Written(each)
            async with KafkaSink(topic, bootstrap=broker.bootstrap) as sink:
                assert {*await written.write(sink)} == {*range(2, len(each))}
        assert [each.value for each in await read(broker, topic)] == [b"\xff", b'{"a":1}'] * 2

    run(scenario())


def test_a_topic_that_is_not_there_concerns_its_own_items(broker: EmbeddedKafka) -> None:
    """With a function for the topic; the other items are delivered."""

    async def scenario() -> None:
        topic, missing = await new_topic(broker), new_name("missing")
        written = Written([topic, missing, topic])
        async with KafkaSink(lambda item: item, bootstrap=broker.bootstrap) as sink:
            errors = await written.write(sink)
            assert list(errors) == [1]
            assert isinstance(errors[1], RefusedError)
            assert errors[1].of_item
            assert missing in str(errors[1])
            await new_topic(broker, name=missing)
            assert await written.write(sink) == {}
        assert len(await read(broker, topic)) == 2
        assert len(await read(broker, missing)) == 1

    run(scenario())


@pytest.mark.parametrize("at_fault", ["no record", "no key in a compacted topic", "too large"])
def test_nothing_is_stored_behind_a_failed_item_of_its_key(
    broker: EmbeddedKafka, at_fault: str
) -> None:
    """Also if records of one key belong to several partitions; other keys are not affected."""

    async def scenario() -> None:
        topic = await new_topic(
            broker, 2, settings={"cleanup.policy": "compact", "max.message.bytes": "1000"}
        )
        bad: dict[str, Any] = {"n": 1, "k": "x", "p": 0, "v": "1"}
        match at_fault:
            case "no record":
                bad["v"] = 7
            case "no key in a compacted topic":
                bad["k"] = None
            case _:
                bad["v"] = "[" + "1," * 999 + "1]"
        good = [
            {"n": n, "k": "x", "p": p, "v": str(n)} for n, p in [(0, 0), (2, 1), (3, 0), (4, 1)]
        ]
        written = Written([good[0], bad, *good[1:]], keys=["a", "b", "b", "c", "b"])
        async with KafkaSink(
            topic,
            bootstrap=broker.bootstrap,
            key="k",
            value=lambda item: item["v"],
            partition=lambda item: item["p"],
        ) as sink:
            errors = await written.write(sink)
            stopped = {index: type(error) for index, error in errors.items() if index != 1}
            assert stopped == {2: KeyStopped, 4: KeyStopped}
            assert isinstance(errors[1], PermanentError)
            later = Written([{"n": 9, "k": "x", "p": 0, "v": "9"}], keys=["b"])
            assert await later.write(sink) == {}  # no gap remains in the sequence numbers
        assert [each.item for each in await read(broker, topic)] == [0, 3, 9]

    run(scenario())


PARTITIONS = [TopicPartition("t", number) for number in range(3)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(PARTITIONS))))
@settings(max_examples=200)
def test_waves_keep_the_order_of_keys_and_of_partitions(
    given: Sequence[tuple[str, TopicPartition]],
) -> None:
    """Each record is in one wave; a key has one partition in each; no order is reversed."""
    placed: dict[TopicPartition, list[int]] = {}
    for place, (_, partition) in enumerate(given):
        placed.setdefault(partition, []).append(place)
    found: list[Mapping[TopicPartition, Sequence[int]]] = waves(placed, [key for key, _ in given])
    assert sorted(p for wave in found for places in wave.values() for p in places) == [
        *range(len(given))
    ]
    wave_of = {p: n for n, wave in enumerate(found) for places in wave.values() for p in places}
    for later, (key, partition) in enumerate(given):
        for earlier, (other, before) in enumerate(given[:later]):
            if partition == before:
                assert wave_of[earlier] <= wave_of[later]
            elif key == other:
                assert wave_of[earlier] < wave_of[later]
    assert all([*places] == sorted(places) for wave in found for places in wave.values())
