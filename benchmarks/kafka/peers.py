"""Ways to consume a topic with other libraries; each library is optional."""

from __future__ import annotations

import importlib
import uuid
from typing import TYPE_CHECKING, Any

from .ways import CONCURRENCY, FETCH

if TYPE_CHECKING:
    from ..stopwatch import Took
    from .counting import Counter
    from .ways import Way


def faststream(*, in_batches: bool = False) -> Way:
    """Use FastStream with its defaults, without log lines: one record or batch after another, with
    periodic commits before they are handled.
    """

    async def way(bootstrap: str, topic: str, counter: Counter) -> Took:
        library: Any = importlib.import_module("faststream.kafka")
        broker = library.KafkaBroker(bootstrap, logger=None)
        batches: dict[str, Any] = {"batch": True, "max_records": FETCH} if in_batches else {}
        subscribe = broker.subscriber(
            topic, group_id=uuid.uuid4().hex, auto_offset_reset="earliest", **batches
        )

        async def handle(message: bytes) -> None:
            await counter.handle(message)

        async def handle_batch(messages: list[bytes]) -> None:
            counter.count(len(messages))

        subscribe(handle_batch if in_batches else handle)
        async with broker:
            await broker.start()
            await counter.wait_finished()
            return counter.read_last()

    return way


def arroyo(*, in_batches: bool = False) -> Way:
    """Use arroyo with its defaults: a task for each record, or for each batch, in this thread, with
    periodic commits of handled records.
    """

    async def way(bootstrap: str, topic: str, counter: Counter) -> Took:
        kafka: Any = importlib.import_module("arroyo.backends.kafka")
        processing: Any = importlib.import_module("arroyo.processing")
        strategies: Any = importlib.import_module("arroyo.processing.strategies")
        types: Any = importlib.import_module("arroyo.types")

        def handle(message: Any) -> None:
            counter.count(len(message.payload) if in_batches else 1)
            if counter.is_finished:
                processor.signal_shutdown()

        class Strategies(strategies.ProcessingStrategyFactory):  # type: ignore[misc]  # not installed here
            def create_with_partitions(self, commit: Any, partitions: object) -> Any:
                task = strategies.RunTask(handle, strategies.CommitOffsets(commit))
                return strategies.BatchStep(FETCH, 0.2, task) if in_batches else task

        options = kafka.build_kafka_consumer_configuration(
            {},
            bootstrap_servers=[bootstrap],
            group_id=uuid.uuid4().hex,
            auto_offset_reset="earliest",
        )
        consumer = kafka.KafkaConsumer(options)
        processor = processing.StreamProcessor(consumer, types.Topic(topic), Strategies())
        processor.run()
        return counter.read_last()

    return way


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
        return counter.read_last()
    finally:
        await consumer.stop()
