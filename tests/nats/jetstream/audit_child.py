"""A consumer of a stream in a process that tests kill, freeze or stop.

`audit_child.py '{"url": ..., "stream": ..., "name": ..., "audit": ...}'` appends lines to the
audit, each in one write: `ready name`, `assigned name partition`, `began name sequence key
attempt`, and then `done`, `failed` or `cut` with the same fields; `revoked` and `lost` like
`assigned`; each with the time of the monotonic clock at its end. It prints an empty line to its
parent each time. The payload determines what else a handler does: see `Worker.handle`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sluicegate
from sluicegate import Consumer, Nak, RetryPolicy, Terminate
from sluicegate.consumer import Commits, ConsumerObserver
from sluicegate.nats import JetStreamSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message
    from sluicegate.consumer import Result, TopicPartition


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the consumer."""

    url: str
    stream: str
    name: str
    audit: str
    durable: str = "d"
    partitions: int | None = None
    ack_wait: float = 1.0
    prefetch: int = 500
    concurrency: int = 8
    max_in_flight: int = 1000
    work: float = 0.002
    naks: float = 0.0
    """The fraction of attempts that fail."""
    drain: float = 5.0
    seed: int = 0
    blocks: bool = True
    """Whether `block` blocks the loop; otherwise it is the same as `hold`."""


class Audit(ConsumerObserver):
    """The events of one process, in a file shared by all processes."""

    def __init__(self, options: Options) -> None:
        self._name = options.name
        self._file = os.open(options.audit, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, what: str, *about: object) -> None:
        line = " ".join(map(str, [what, self._name, *about, time.monotonic()]))
        os.write(self._file, f"{line}\n".encode())
        print(flush=True)  # noqa: T201  # the parent reads it

    def on_claims(self, name: str, change: str, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self.note(change, each.partition)


class Worker:
    """The handler of one process."""

    def __init__(self, audit: Audit, options: Options) -> None:
        self._audit = audit
        self._options = options
        self._chance = random.Random(options.seed)
        self.gate = asyncio.Event()

    def heard(self) -> None:
        """Process a line from the parent."""
        os.read(0, 1)
        self.gate.set()

    async def handle(self, message: Message) -> Result | None:
        """Do what the payload says: `hold` until the parent sends a line, `block` the loop until
        then, `sleep` for some seconds, `term` or `fail`. Other payloads are handled, with some
        naks.
        """
        action, _, number = message.value.decode().partition(" ")
        about = (message.offset, message.key, message.attempt)
        self._audit.note("began", *about)
        try:
            if action == "block" and self._options.blocks:
                os.read(0, 1)
            elif action in {"hold", "block"}:
                await self.gate.wait()
            elif action == "sleep":
                await asyncio.sleep(float(number))
            elif self._options.work:
                await asyncio.sleep(self._options.work)
        except asyncio.CancelledError:
            self._audit.note("cut", *about)
            raise
        if action == "fail" or self._chance.random() < self._options.naks:
            self._audit.note("failed", *about)
            return Nak(0.01)
        self._audit.note("done", *about)
        return Terminate("no use") if action == "term" else None


async def consume(options: Options) -> None:
    """Consume until a signal arrives."""
    audit = Audit(options)
    worker = Worker(audit, options)
    source = JetStreamSource(
        options.stream,
        servers=options.url,
        durable=options.durable,
        partitions=options.partitions,
        member=options.name,
        ack_wait=options.ack_wait,
        prefetch=options.prefetch,
    )
    consumer = Consumer(
        source,
        name="child",
        concurrency=options.concurrency,
        in_flight=options.max_in_flight,
        drain=options.drain,
        commits=Commits(every=0.05),
        retry=RetryPolicy(attempts=1_000),
        poison="skip",
        observers=[audit],
    )
    asyncio.get_running_loop().add_reader(0, worker.heard)
    async with consumer:
        audit.note("ready")
        await consumer.run(worker.handle)


if __name__ == "__main__":
    given = Options(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    sluicegate.run(consume(given))
