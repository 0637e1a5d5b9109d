"""B-T40: a batch whose response is lost is sent again unchanged, and stored once.

White box: the time limit of the requests of an open sink.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka.access_help import kafka_args
from tests.kafka.sink.sink_help import Answering, Written, items, read
from tests.kafka.source.kafka_help import new_topic
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.source.storm_help import run

from sluicegate import (
    Batcher,
    Limits,
    Outcome,
    RefusedError,
    Retry,
    Timeout,
    UnavailableError,
    UnknownOutcomeError,
    stack,
)
from sluicegate.errors import TooLargeError
from sluicegate.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Literal

    from tests.kafka.source.proxy_help import KafkaProxy

    from sluicegate.testing import EmbeddedKafka

TEN, MORE = list(range(10)), list(range(10, 15))
BRIEF = 0.3
"""Seconds to wait for a response that does not come."""


@asynccontextmanager
async def behind_proxy(
    broker: EmbeddedKafka, partitions: int = 1, **options: Any
) -> AsyncIterator[tuple[KafkaSink, KafkaProxy, str]]:
    """An open sink, the proxy that it connects through, and its topic."""
    topic = await new_topic(broker, partitions)
    async with proxied(broker) as proxy:
        async with KafkaSink(topic, **kafka_args(KafkaSink, proxy.bootstrap, **options)) as sink:
            yield sink, proxy, topic


@contextmanager
def brief(sink: KafkaSink) -> Iterator[None]:
    """Requests inside wait for `BRIEF` only; others as long as a busy broker may need."""
    client: Any = sink._session.client  # type: ignore[union-attr]
    before, client._request_timeout_ms = client._request_timeout_ms, int(BRIEF * 1000)
    for connection in client._conns.values():
        connection._request_timeout = BRIEF
    yield
    client._request_timeout_ms = before


@pytest.mark.parametrize("lost", ["request", "answer"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_connection_that_breaks_stores_each_record_once(
    broker: EmbeddedKafka, lost: Literal["request", "answer"], times: int
) -> None:
    """Before or after the broker has read the request; within one write."""

    async def scenario() -> None:
        async with behind_proxy(broker) as (sink, proxy, topic):
            written = Written(TEN)
            gates = [proxy.hold(Api.PRODUCE, lost)]
            writing = asyncio.ensure_future(written.write(sink))
            for _ in range(times):
                await gates[-1].arrived.wait()
                gates.append(proxy.hold(Api.PRODUCE, lost))
                gates[-2].cut()
            gates[-1].open()
            assert await writing == {}
            found = await read(broker, topic)
            assert [each.item for each in found] == TEN
            assert written.details() == [each.at for each in found]

    run(scenario())


def test_an_answer_that_is_lost_for_good_is_unknown_and_its_retry_stores_nothing_twice(
    broker: EmbeddedKafka,
) -> None:
    """batcher/B40: the items of the retry get the results of the stored records."""

    async def scenario() -> None:
        async with behind_proxy(broker) as (sink, proxy, topic):
            written = Written(TEN)
            gate = proxy.hold(Api.PRODUCE, "answer")
            with brief(sink):
                errors = await written.write(sink)
            assert {*errors} == {*TEN}
            assert {type(each) for each in errors.values()} == {UnknownOutcomeError}
            gate.cut()
            assert await written.write(sink) == {}
            assert await written.write(sink) == {}
            found = await read(broker, topic)
            assert [each.item for each in found] == TEN
            assert written.details() == [each.at for each in found]

    run(scenario())


def test_another_write_to_the_partition_settles_the_doubt_first(broker: EmbeddedKafka) -> None:
    """batcher/B40: the first batch stays first, even if its retry comes later."""

    async def scenario() -> None:
        async with behind_proxy(broker) as (sink, proxy, topic):
            first, second = Written(TEN), Written(MORE)
            gate = proxy.hold(Api.PRODUCE, "request")
            with brief(sink):
                assert len(await first.write(sink)) == len(TEN)
            gate.cut()
            assert await second.write(sink) == {}
            assert await first.write(sink) == {}
            found = await read(broker, topic)
            assert [each.item for each in found] == TEN + MORE
            assert first.details() + second.details() == [each.at for each in found]

    run(scenario())


def test_nothing_is_sent_behind_a_batch_in_doubt(broker: EmbeddedKafka) -> None:
    """Another write fails as unavailable while there is no response."""

    async def scenario() -> None:
        async with behind_proxy(broker) as (sink, proxy, topic):
            first, second = Written(TEN), Written(MORE)
            gate = proxy.hold(Api.PRODUCE, "answer")
            with brief(sink):
                assert len(await first.write(sink)) == len(TEN)
                errors = await second.write(sink)
            assert {type(each) for each in errors.values()} == {UnavailableError}
            assert second.batch.maybe_applied == frozenset()
            gate.cut()
            assert await second.write(sink) == {}
            assert await first.write(sink) == {}
            assert await items(broker, topic) == TEN + MORE

    run(scenario())


def test_a_part_of_the_items_comes_again_with_others(broker: EmbeddedKafka) -> None:
    """Items in doubt and fresh ones in one write: each is stored once, and has its details."""

    async def scenario() -> None:
        async with behind_proxy(broker) as (sink, proxy, topic):
            whole = Written(TEN)
            gate = proxy.hold(Api.PRODUCE, "answer")
            with brief(sink):
                assert len(await sink_errors(sink, whole, [0, 1, 2, 5])) == 4
            gate.cut()
            assert await whole.write(sink) == {}
            found = await read(broker, topic)
            assert [each.item for each in found] == [0, 1, 2, 5, 3, 4, 6, 7, 8, 9]
            assert [each.at for each in sorted(found, key=lambda each: each.item)] == (
                whole.details()
            )

    run(scenario())


async def sink_errors(
    sink: KafkaSink, whole: Written, indices: list[int]
) -> dict[int, BaseException]:
    """Write a part of a batch."""
    part = Written([])
    part.batch = whole.batch.pick(indices)
    return await part.write(sink)


@pytest.mark.parametrize("comes_first", ["the same batch", "another one"])
def test_a_cancelled_write_is_stored_once(broker: EmbeddedKafka, comes_first: str) -> None:
    """Cancelled while its response is in flight, and then sent again."""

    async def scenario() -> None:
        async with behind_proxy(broker) as (sink, proxy, topic):
            first, second = Written(TEN), Written(MORE)
            gate = proxy.hold(Api.PRODUCE, "answer")
            writing = asyncio.ensure_future(first.write(sink))
            await gate.arrived.wait()
            writing.cancel()
            await asyncio.wait([writing])
            assert writing.cancelled()
            assert first.batch.maybe_applied == {*range(10)}
            gate.cut()
            order = [first, second] if comes_first == "the same batch" else [second, first]
            for each in order:
                assert await each.write(sink) == {}
            found = await read(broker, topic)
            assert [each.item for each in found] == TEN + MORE
            assert first.details() + second.details() == [each.at for each in found]

    run(scenario())


def test_what_is_stored_before_a_cancellation_is_delivered(broker: EmbeddedKafka) -> None:
    """In a write of several batches, those with a response are not sent again."""

    async def scenario() -> None:
        async with behind_proxy(broker, max_batch_bytes=100) as (sink, proxy, topic):
            written = Written(["x" * 90, "y" * 90, "z" * 90])
            answers = count(1)
            gate = proxy.hold(Api.PRODUCE, "answer", lambda _: next(answers) == 2)
            writing = asyncio.ensure_future(written.write(sink))
            await gate.arrived.wait()
            writing.cancel()
            await asyncio.wait([writing])
            assert written.delivered == ["x" * 90]
            gate.cut()
            assert await written.write(sink) == {}
            found = await read(broker, topic)
            assert [each.item for each in found] == list(written.batch)
            assert written.details() == [each.at for each in found]

    run(scenario())


@pytest.mark.parametrize(
    "code", [19, 29, *(pytest.param(each, marks=pytest.mark.long) for each in (6, 7, 20, 56, -1))]
)
def test_a_refusal_of_the_second_try_says_nothing_about_the_first(
    broker: EmbeddedKafka, code: int
) -> None:
    """The outcome stays in doubt and is settled afterwards. Too few in-sync replicas are an outage, and
    without the permission the items wait for the repair.
    """

    async def scenario() -> None:
        async with behind_proxy(broker) as (sink, proxy, topic):
            first, second = Written(TEN), Written(MORE)
            gate = proxy.hold(Api.PRODUCE, "answer")
            writing = asyncio.ensure_future(first.write(sink))
            await gate.arrived.wait()
            writing.cancel()
            await asyncio.wait([writing])
            proxy.changes.append(Answering(*[code] * (2 if code == 29 else 6)))
            gate.cut()
            errors = await first.write(sink)
            expected = {19: UnavailableError, 29: RefusedError}.get(code, UnknownOutcomeError)
            assert {type(each) for each in errors.values()} == {expected}
            assert first.batch.maybe_applied == {*range(10)}
            errors = await second.write(sink)
            assert {type(each) for each in errors.values()} == {UnavailableError}
            assert await second.write(sink) == {}
            assert await first.write(sink) == {}
            found = await read(broker, topic)
            assert [each.item for each in found] == TEN + MORE
            assert first.details() + second.details() == [each.at for each in found]

    run(scenario())


@pytest.mark.parametrize(
    "code", [-1, *(pytest.param(each, marks=pytest.mark.long) for each in (6, 7, 20, 56))]
)
def test_an_error_after_the_records_were_stored_leads_to_no_second_copy(
    broker: EmbeddedKafka, code: int
) -> None:
    """A leader may answer like this although it has the records; the next write contains others."""

    async def scenario() -> None:
        async with behind_proxy(broker) as (sink, proxy, topic):
            first, second = Written(TEN), Written(MORE)
            proxy.changes.append(Answering(*[code] * 3))
            errors = await first.write(sink)
            assert {type(each) for each in errors.values()} == {UnknownOutcomeError}
            assert await second.write(sink) == {}
            assert await first.write(sink) == {}
            found = await read(broker, topic)
            assert [each.item for each in found] == TEN + MORE
            assert first.details() + second.details() == [each.at for each in found]

    run(scenario())


def test_a_batch_of_an_earlier_write_that_is_refused_for_its_records_is_out_of_the_way(
    broker: EmbeddedKafka,
) -> None:
    """The write that receives the refusal continues with its own batches; the refused items fail in
    their retry.
    """

    async def scenario() -> None:
        topic = await new_topic(broker, settings={"max.message.bytes": "1000"})
        async with (
            proxied(broker) as proxy,
            KafkaSink(topic, bootstrap=proxy.bootstrap, max_batch_bytes=100) as sink,
        ):
            first, second = Written(["x" * 2_000, "small"]), Written(["y" * 90] * 3)
            gate = proxy.hold(Api.PRODUCE, "request")
            writing = asyncio.ensure_future(first.write(sink))
            await gate.arrived.wait()
            writing.cancel()
            await asyncio.wait([writing])
            gate.cut()
            assert await second.write(sink) == {}
            errors = await first.write(sink)
            assert {index: type(each) for index, each in errors.items()} == {0: TooLargeError}
            assert await items(broker, topic) == [*second.batch, "small"]

    run(scenario())


def test_a_timeout_in_a_stack_costs_no_record_and_stores_none_twice(broker: EmbeddedKafka) -> None:
    """`Timeout`, `Retry` and batcher: each item is delivered once, in the tally and in the topic."""

    async def scenario() -> None:
        async with behind_proxy(broker) as (sink, proxy, topic):
            gate = proxy.hold(Api.PRODUCE, "answer")
            full = stack(sink, Timeout(BRIEF), Retry(attempts=100))
            async with Batcher(full, limits=Limits(max_items=10), name="timed") as batcher:
                receipts = [await batcher.submit(each) for each in TEN + MORE]
                await gate.arrived.wait()
                await proxy.heard(Api.PRODUCE, "request", 2)  # the next attempt
                gate.cut()
                assert {await each for each in receipts} == {Outcome.DELIVERED}
            assert batcher.report is not None
            assert batcher.report.tally.delivered == 15
            details = [each.detail for each in receipts]
            found = await read(broker, topic)
            assert [each.item for each in found] == TEN + MORE
            assert details == [each.at for each in found]

    run(scenario())


def test_what_is_remembered_of_stored_records_is_small(broker: EmbeddedKafka) -> None:
    """Items that are never sent again do not hold the bytes of their records."""

    async def scenario() -> None:
        async with behind_proxy(broker) as (sink, proxy, _):
            first = Written(["x" * 100_000])
            gate = proxy.hold(Api.PRODUCE, "answer")
            with brief(sink):
                assert len(await first.write(sink)) == 1
            gate.cut()
            assert await Written(MORE).write(sink) == {}
            remembered: Any = sink._sent_items
            kept = remembered.get(first.batch.item_keys()[0])
            assert (kept.batch.count, kept.batch.data) == (1, b"")
            assert await first.write(sink) == {}

    run(scenario())
