"""How users of other libraries consume a topic; each library is optional."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from .ways import CONCURRENCY

if TYPE_CHECKING:
    from ..stopwatch import Took
    from .counting import Counter


async def faststream(bootstrap: str, topic: str, counter: Counter) -> Took:
    """FastStream as it is by default, without a log line for each message: one record after
    another, and a commit by time before they are handled.
    """
    from faststream.kafka import KafkaBroker

    broker: Any = KafkaBroker(bootstrap, logger=None)

    subscribe: Any = broker.subscriber(
        topic, group_id=uuid.uuid4().hex, auto_offset_reset="earliest"
    )

    @subscribe  # type: ignore[untyped-decorator]  # installed for measurements only
    async def handle(message: bytes) -> None:
        await counter.handle(message)

    async with broker:
        await broker.start()
        await counter.wait_finished()
        return counter.read()


async def pyrallel(bootstrap: str, topic: str, counter: Counter) -> Took:
    """pyrallel-consumer with handlers in this process, as many virtual partitions as may run at
    once, and in order per key.
    """
    from pyrallel_consumer import (
        ExecutionConfig,
        KafkaConfig,
        ParallelConsumerConfig,
        PyrallelConsumer,
    )

    parallel = ParallelConsumerConfig(
        worker_pool_size=CONCURRENCY, execution=ExecutionConfig(max_in_flight=CONCURRENCY)
    )
    config = KafkaConfig(
        BOOTSTRAP_SERVERS=[bootstrap],
        CONSUMER_GROUP=uuid.uuid4().hex,
        dlq_enabled=False,
        parallel_consumer=parallel,
    )
    consumer: Any = PyrallelConsumer(config, counter.handle, topic)
    await consumer.start()
    try:
        await counter.wait_finished()
        await asyncio.sleep(0)
        return counter.read()
    finally:
        await consumer.stop()
