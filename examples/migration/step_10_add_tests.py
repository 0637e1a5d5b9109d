"""Step 10: add tests. `protected` and `serve` take any sink, so a test gives them a scripted one."""

import json
import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

import penstock
from penstock.sinks import PostgresSink

Event = tuple[int, str | None]
logger = logging.getLogger("audit")
registry = CollectorRegistry()


class Metrics(penstock.Observer):
    """The four that tell a healthy batcher from a sick one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        sizes = (1, 5, 10, 50, 100, 500, 1000)
        self.size = Histogram("batcher_batch_size_items", "Items in a batch", ["name"], buckets=sizes, registry=registry)
        self.duration = Histogram("batcher_flush_duration_seconds", "A write, backoffs included", ["name", "result"], registry=registry)
        self.flushes = Counter("batcher_flush", "Batches by the reason they were sealed for", ["name", "reason"], registry=registry)
        self.depth = Gauge("batcher_queue_depth", "Items that no worker has taken", ["name"], registry=registry)

    def on_flush_start(self, batch: penstock.Batch[Any]) -> None:
        self.size.labels(batch.name).observe(len(batch))
        self.flushes.labels(batch.name, batch.reason.value).inc()

    def on_flushed(self, batch: penstock.Batch[Any], seconds: float, errors: Mapping[int, BaseException]) -> None:
        self.duration.labels(batch.name, "error" if errors else "ok").observe(seconds)

    def watch(self, batcher: penstock.Batcher[Any]) -> None:
        self.depth.labels(batcher.name).set_function(lambda: batcher.stats().tally.queued)


metrics = Metrics(registry)


def not_recorded(events: Sequence[Event], error: BaseException) -> None:
    logger.error("events %s are not recorded: %r", [number for number, _ in events], error)


def refused(record: penstock.DeadLetterRecord[Event]) -> tuple[str, str]:
    return json.dumps(record.item), record.message


def protected(table: penstock.Sink[Event], refusals: penstock.Sink[tuple[str, str]]) -> penstock.Sink[Event]:
    return penstock.stack(
        table,
        penstock.Timeout(5.0),
        penstock.Retry(attempts=5),
        penstock.DeadLetter(refusals, record=refused),
    )


async def handle(batcher: penstock.Batcher[Event], event: Event) -> None:
    await batcher.add(event)


async def serve(sink: penstock.Sink[Event], requests: AsyncIterator[Event]) -> None:
    limits = penstock.Limits(max_items=500, max_delay=0.2)
    batcher = penstock.Batcher(
        sink,
        name="audit",
        limits=limits,
        on_failure=not_recorded,
        shutdown_deadline=10.0,
        observers=[metrics],
    )
    metrics.watch(batcher)
    async with batcher:
        async for event in requests:
            await handle(batcher, event)


def main(dsn: str, requests: AsyncIterator[Event]) -> None:
    table = PostgresSink(dsn, table="audit_events", columns=("id", "action"), on_conflict="ignore")
    refusals = PostgresSink(dsn, table="audit_refused", columns=("event", "error"))
    penstock.run(serve(protected(table, refusals), requests))


async def thousand_requests() -> AsyncIterator[Event]:
    """Stands for the network: the next request comes when the last one has been handled."""
    for number in range(1000):
        yield number, "login"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    start_http_server(9100, registry=registry)
    main(sys.argv[1], thousand_requests())
