"""Penstock. Its defaults, and dead letters in memory for poison."""

from __future__ import annotations

import os

import penstock
from penstock.sources.kafka import KafkaSource

from work import BOOTSTRAP, CONCURRENCY, GROUP, SIZE, TOPIC, say, work  # isort: skip


async def handle(message: penstock.Message) -> None:
    await work(message.key, message.value)


async def handle_many(messages: list[penstock.Message]) -> list[object]:
    """Results by position: the bad one is given up, and no other."""
    say("batch", len(messages))
    results: list[object] = []
    for message in messages:
        try:
            await work(message.key, message.value)
        except ValueError as error:
            results.append(penstock.Nak(error=error))
        else:
            results.append(penstock.Ack())
    return results


async def keep(letters: list[object]) -> None:
    for letter in letters:
        say("letter", 0, repr(getattr(letter, "message", ""))[:40].replace(" ", "_"))


async def main() -> None:
    source = KafkaSource(
        TOPIC, bootstrap=BOOTSTRAP, group=GROUP, session_timeout=10, rebalance_timeout=20
    )
    options = {"dead_letters": keep} if os.environ.get("LETTERS") else {}
    async with penstock.Consumer(
        source, name="compared", concurrency=CONCURRENCY, drain=5.0, **options
    ) as consumer:
        if SIZE:
            await consumer.run_batch(handle_many, size=SIZE, max_wait=0.5)
        else:
            await consumer.run(handle)


if __name__ == "__main__":
    penstock.run(main())
