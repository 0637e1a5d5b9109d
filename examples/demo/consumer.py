"""A consumer of the scenes on brokers, in its own process: the flights in order per aircraft.

It reads its settings from a line of JSON on stdin, prints `ready` as soon as the group has assigned
partitions to it, and drains on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sluicegate import Batcher, CircuitBreaker, DeadLetter, Limits, Retry, Timeout, run, stack
from sluicegate.consumer import Commits, Poison
from sluicegate.flow import pipe
from sluicegate.kafka import KafkaSource
from sluicegate.nats import JetStreamSource
from sluicegate.postgres import PostgresSink

from .legs import LEG, tailnum_of

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.consumer import Source
    from sluicegate.flow import Pipe
    from sluicegate.sinks import DeadLetterRecord

Broker: TypeAlias = "Literal['kafka', 'nats']"
MODULE = "examples.demo.consumer"
GROUP = "legs"
LETTER = ("line", "tailnum", "why")
SESSION_SECONDS = 2.0
"""Seconds without a heartbeat after which the broker reassigns a killed consumer's partitions."""
ACK_SECONDS = 2.0
"""Seconds after which the server delivers a killed consumer's messages again."""
PARTITIONS = 6
"""Number of partitions of the divided stream."""
TRY_SECONDS = 10.0
BREAKER_SECONDS = 1.0
DRAIN_SECONDS = 10.0
COMMIT_SECONDS = 0.5
WORKERS = 2
BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Place:
    """The places that the consumers read from and write to."""

    broker: Broker
    address: str
    topic: str
    """The topic of Kafka, or the stream of JetStream."""
    dsn: str
    schema: str


def make_pipe(place: Place, name: str) -> Pipe:
    """Make the pipe of the consumer `name`.

    A record that is not JSON is refused by the transform, an invalid flight by the table; both
    become rows of one table of dead letters.
    """
    legs = PostgresSink(
        place.dsn,
        table="legs",
        schema=place.schema,
        columns=(*LEG, "consumer"),
        on_conflict="update",
        conflict_columns=("line",),
        pool_size=WORKERS,
    )
    batcher = Batcher(
        stack(
            legs,
            Timeout(TRY_SECONDS),
            CircuitBreaker(open_for=BREAKER_SECONDS),
            Retry(),
            DeadLetter(
                _letters(place),
                record=_letter_of_row,
                take=("permanent", "exhausted", "transient", "given_up", "unknown"),
            ),
        ),
        key=tailnum_of,
        limits=Limits(max_items=BATCH, max_delay=0.1, workers=WORKERS),
        name=name,
    )
    return pipe(
        _source(place, name),
        batcher,
        partial(_row, name),
        name=GROUP,
        poison=Poison("skip", dead_letters=_letters(place, row=_letter_of_record)),
        drain=DRAIN_SECONDS,
        commits=Commits(every=COMMIT_SECONDS),
    )


def _source(place: Place, name: str) -> Source:
    if place.broker == "nats":
        return JetStreamSource(
            place.topic,
            servers=place.address,
            durable=GROUP,
            partitions=PARTITIONS,
            member=name,
            key=2,
            ack_wait=ACK_SECONDS,
        )
    return KafkaSource(
        place.topic, bootstrap=place.address, group=GROUP, session_timeout=SESSION_SECONDS
    )


def _letters(place: Place, **row: Any) -> Any:
    letters = PostgresSink(
        place.dsn,
        table="leg_letters",
        schema=place.schema,
        columns=LETTER,
        on_conflict="ignore",
        pool_size=WORKERS,
        **row,
    )
    return stack(letters, Timeout(TRY_SECONDS), Retry())


def _row(consumer: str, message: Message) -> dict[str, Any]:
    return {**json.loads(message.value), "consumer": consumer}


def _letter_of_row(letter: DeadLetterRecord[dict[str, Any]]) -> tuple[object, ...]:
    return letter.item["line"], letter.item["tailnum"], letter.error_class


def _letter_of_record(letter: DeadLetterRecord[dict[str, Any]]) -> tuple[object, ...]:
    line, key = letter.item["value"].split()[0], letter.item["key"]
    tailnum = key.decode() if isinstance(key, bytes) else key
    return int(line), tailnum, letter.cause_type or letter.error_type


async def consume(place: Place, name: str) -> None:
    """Run until a signal."""
    running = make_pipe(place, name)
    async with asyncio.TaskGroup() as group:
        group.create_task(_announce(running))
        await running.run()


async def _announce(running: Pipe) -> None:
    await running.wait_ready()
    print("ready", flush=True)


def main() -> None:
    """Read the settings and consume."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    settings = json.loads(sys.stdin.readline())
    run(consume(Place(**settings["place"]), settings["name"]))


if __name__ == "__main__":
    main()
