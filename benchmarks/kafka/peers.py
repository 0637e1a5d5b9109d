"""Ways to consume a topic with other libraries; each library is optional."""

from __future__ import annotations

import asyncio
import importlib
import uuid
from typing import TYPE_CHECKING, Any

from .ways import CONCURRENCY

if TYPE_CHECKING:
    from ..stopwatch import Took
    from .counting import Counter


async def faststream(bootstrap: str, topic: str, counter: Counter) -> Took:
    """Use FastStream with its defaults, without a log line for each message: one record after
    another, with periodic commits before they are handled.
    """
    library: Any = importlib.import_module("faststream.kafka")
    broker = library.KafkaBroker(bootstrap, logger=None)

    subscribe = broker.subscriber(topic, group_id=uuid.uuid4().hex, auto_offset_reset="earliest")

    async def handle(message: bytes) -> None:
        await counter.handle(message)

    subscribe(handle)
    async with broker:
        await broker.start()
        await counter.wait_finished()
        return counter.read()


async def pyrallel(bootstrap: str, topic: str, counter: Counter) -> Took:
    """Use pyrallel-consumer with handlers in this process, as many virtual partitions as concurrent
    handlers, and in order per key.
    """
    library: Any = importlib.import_module("pyrallel_consumer")
    parallel = library.ParallelConsumerConfig(
        worker_pool_size=CONCURRENCY, execution=library.ExecutionConfig(max_in_flight=CONCURRENCY)
    )
    config = library.KafkaConfig(
        BOOTSTRAP_SERVERS=[bootstrap],
        CONSUMER_GROUP=uuid.uuid4().hex,
        dlq_enabled=False,
        parallel_consumer=parallel,
    )
    consumer = library.PyrallelConsumer(config, counter.handle, topic)
    await consumer.start()
    try:
        await counter.wait_finished()
        await asyncio.sleep(0)
        return counter.read()
    finally:
        await consumer.stop()
