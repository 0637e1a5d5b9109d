"""Ways to write batches of items to a topic, each batch awaited before the next.

All are idempotent, wait for all in-sync replicas, and have the same maximum batch size.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluicegate import Batcher, Limits, RowBatch
from sluicegate.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    Write = Callable[[Sequence[Any]], Awaitable[None]]
    Producer = Callable[[str, str, "Form"], AbstractAsyncContextManager[Write]]
    """A function of bootstrap servers, topic and form that opens a writer of batches."""

MAX_BATCH_BYTES = 1_000_000
LINGER = 0.005
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Form:
    """The conversion of an item to a record: by functions, and by arguments of the sink."""

    key: Callable[[Any], bytes | None]
    value: Callable[[Any], bytes]
    of_sink: Mapping[str, Any] = field(default_factory=dict[str, Any])


@contextlib.asynccontextmanager
async def _aiokafka(bootstrap: str, **options: Any) -> AsyncGenerator[Any]:
    library: Any = importlib.import_module("aiokafka")
    producer = library.AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        max_batch_size=MAX_BATCH_BYTES,
        max_request_size=2 * MAX_BATCH_BYTES,
        **options,
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


def send(linger: float) -> Producer:
    """Use aiokafka's `send` for each record, then wait for all futures."""

    @contextlib.asynccontextmanager
    async def producer(bootstrap: str, topic: str, form: Form) -> AsyncGenerator[Write]:
        key, value = form.key, form.value
        async with _aiokafka(bootstrap, linger_ms=round(linger * 1000)) as client:

            async def write(items: Sequence[Any]) -> None:
                sent = [await client.send(topic, value(each), key=key(each)) for each in items]
                await asyncio.gather(*sent)

            yield write

    return producer


def send_batch(*, keeps_hashes: bool = False) -> Producer:
    """Use aiokafka's `create_batch` and `send_batch` for each partition, with its own partitioner;
    `keeps_hashes` caches the partitions of keys.
    """

    @contextlib.asynccontextmanager
    async def producer(bootstrap: str, topic: str, form: Form) -> AsyncGenerator[Write]:
        partitioner: Any = importlib.import_module("aiokafka.partitioner").DefaultPartitioner()
        key, value = form.key, form.value
        async with _aiokafka(bootstrap) as client:
            partitions = sorted(await client.partitions_for(topic))

            def choose(chosen: bytes | None) -> int:
                return int(partitioner(chosen, partitions, partitions))

            if keeps_hashes:
                choose = functools.lru_cache(65_536)(choose)

            async def write(items: Sequence[Any]) -> None:
                records: dict[int, list[tuple[bytes | None, bytes]]] = defaultdict(list)
                for each in items:
                    found = key(each)
                    records[choose(found)].append((found, value(each)))
                sent: list[Any] = []
                for partition, pairs in records.items():
                    batch = client.create_batch()
                    for found, content in pairs:
                        if batch.append(key=found, value=content, timestamp=None) is None:
                            sent.append(await client.send_batch(batch, topic, partition=partition))
                            batch = client.create_batch()
                            batch.append(key=found, value=content, timestamp=None)
                    sent.append(await client.send_batch(batch, topic, partition=partition))
                await asyncio.gather(*sent)

            yield write

    return producer


def _sink(bootstrap: str, topic: str, form: Form) -> KafkaSink:
    return KafkaSink(topic, bootstrap=bootstrap, max_batch_bytes=MAX_BATCH_BYTES, **form.of_sink)


@contextlib.asynccontextmanager
async def sink(bootstrap: str, topic: str, form: Form) -> AsyncGenerator[Write]:
    """Use the sink's `write`."""
    async with _sink(bootstrap, topic, form) as opened:

        async def write(items: Sequence[Any]) -> None:
            result = await opened.write(RowBatch(items))
            if result is not None and result.errors:
                raise AssertionError(f"{len(result.errors)} items failed: {result.errors}")

        yield write


@contextlib.asynccontextmanager
async def batcher(bootstrap: str, topic: str, form: Form) -> AsyncGenerator[Write]:
    """Use the sink with a batcher, which gets one item after another, and a flush per batch."""
    limits = Limits(max_items=5_000, max_delay=PATIENCE)
    async with Batcher(_sink(bootstrap, topic, form), limits=limits) as opened:

        async def write(items: Sequence[Any]) -> None:
            for each in items:
                await opened.add(each)
            report = await opened.flush()
            if not report.ok:
                raise AssertionError(f"not every item was delivered: {report}")

        yield write


@contextlib.asynccontextmanager
async def confluent(bootstrap: str, topic: str, form: Form) -> AsyncGenerator[Write]:
    """Use librdkafka's producer: `produce` with a callback for each record, then `flush`."""
    library: Any = importlib.import_module("confluent_kafka")
    options = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "batch.size": MAX_BATCH_BYTES,
    }
    client = library.Producer(options)
    key, value = form.key, form.value
    errors: list[object] = []

    def stored(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    async def write(items: Sequence[Any]) -> None:
        for each in items:
            client.produce(topic, value(each), key=key(each), on_delivery=stored)
        if client.flush(PATIENCE) or errors:
            raise AssertionError(f"{len(errors)} records failed: {errors}")

    yield write
