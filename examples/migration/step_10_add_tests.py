"""Step 10: add tests. `protected` and `serve` take any sink, so a test passes a scripted one."""

import json
import logging
import sys
from collections.abc import AsyncIterator, Sequence

from prometheus_client import CollectorRegistry, start_http_server

import sluicegate
from sluicegate.postgres import PostgresSink
from sluicegate.telemetry import PrometheusObserver

Event = tuple[int, str | None]
logger = logging.getLogger("audit")
registry = CollectorRegistry()


def not_recorded(events: Sequence[Event], error: BaseException) -> None:
    logger.error("events %s are not recorded: %r", [number for number, _ in events], error)


def refused(record: sluicegate.sinks.DeadLetterRecord[Event]) -> tuple[str, str]:
    return json.dumps(record.item), record.message


def protected(
    table: sluicegate.Sink[Event], refusals: sluicegate.Sink[tuple[str, str]]
) -> sluicegate.Sink[Event]:
    return sluicegate.stack(
        table,
        sluicegate.Timeout(5.0),
        sluicegate.Retry(attempts=5),
        sluicegate.DeadLetter(refusals, record=refused),
    )


async def handle(batcher: sluicegate.Batcher[Event], event: Event) -> None:
    await batcher.add(event)


async def serve(sink: sluicegate.Sink[Event], requests: AsyncIterator[Event]) -> None:
    limits = sluicegate.Limits(max_items=500, max_delay=0.2)
    async with sluicegate.Batcher(
        sink,
        name="audit",
        limits=limits,
        on_failure=not_recorded,
        shutdown_deadline=10.0,
        observers=[PrometheusObserver(registry)],
    ) as batcher:
        async for event in requests:
            await handle(batcher, event)


def main(dsn: str, requests: AsyncIterator[Event]) -> None:
    table = PostgresSink(dsn, table="audit_events", columns=("id", "action"), on_conflict="ignore")
    refusals = PostgresSink(dsn, table="audit_refused", columns=("event", "error"))
    sluicegate.run(serve(protected(table, refusals), requests))


async def thousand_requests() -> AsyncIterator[Event]:
    """Simulates the network: the next request arrives after the last one has been handled."""
    for number in range(1000):
        yield number, "login"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    start_http_server(9100, addr="127.0.0.1", registry=registry)
    main(sys.argv[1], thousand_requests())
