"""Sluicegate with its defaults. `POISON=skip` writes dead letters and continues."""

from __future__ import annotations

import os
from typing import Any

import sluicegate
from benchmarks.compared.work import BOOTSTRAP, CONCURRENCY, GROUP, SIZE, TOPIC, say, work
from sluicegate.consumer import Poison
from sluicegate.kafka import KafkaSource


async def handle(message: sluicegate.Message) -> None:
    await work(message.key, message.value)


async def handle_many(messages: list[sluicegate.Message]) -> list[object]:
    """Return results by position: only the bad message fails."""
    say("batch", len(messages))
    results: list[object] = []
    for message in messages:
        try:
            await work(message.key, message.value)
        except ValueError as error:
            results.append(sluicegate.Nak(error=error))
        else:
            results.append(sluicegate.Ack())
    return results


async def keep(letters: Any) -> None:
    for letter in letters:
        say("letter", letter.item["offset"])


async def main() -> None:
    source = KafkaSource(
        TOPIC, bootstrap=BOOTSTRAP, group=GROUP, session_timeout=10, rebalance_timeout=20
    )
    options: dict[str, Any] = {}
    if os.environ.get("POISON"):
        strategy: Any = os.environ["POISON"]
        options = {"poison": Poison(strategy, dead_letters=keep)}
    async with sluicegate.Consumer(
        source, name="compared", concurrency=CONCURRENCY, drain=5.0, **options
    ) as consumer:
        if SIZE:
            await consumer.run_batch(handle_many, size=SIZE, max_wait=0.5)
        else:
            await consumer.run(handle)


if __name__ == "__main__":
    sluicegate.run(main())
