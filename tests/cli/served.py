"""Programs for `sluicegate serve`; each process appends to `done.txt` and reports on standard
output.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from sluicegate import Batcher, ConfigError, Consumer, Message, flow
from sluicegate.consumer import (
    ConsumerObserver,
    MemoryLog,
    MemorySource,
    Record,
)
from sluicegate.files import FileSink, FileSource
from sluicegate.telemetry import PrometheusConsumerObserver

NUMBER = os.environ["SLUICEGATE_PROCESS"]


def report(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def store(text: str) -> None:
    with Path("done.txt").open("a") as file:
        file.write(f"{text}\n")


def is_among_the_first(name: str, most: int) -> bool:
    """Whether this is one of the first calls, counted over all processes."""
    with Path(f"{name}s").open("a") as file:
        file.write("x")
        return file.tell() <= most


async def pass_gate() -> None:
    """Return when the test has opened the gate."""
    await asyncio.to_thread(Path(f"gate{NUMBER}").read_bytes)


class Reported(ConsumerObserver):
    def on_state(self, name: str, state: str) -> None:
        report(state, NUMBER)


def one_record() -> MemorySource:
    return MemorySource(MemoryLog([Record("t", 0, 0, b"a")]))


async def gated() -> None:
    """Its handler returns when the gate is opened."""

    async def handle(_: Message) -> None:
        report("handling", NUMBER, os.getpid())
        await pass_gate()
        store(NUMBER)

    await Consumer(one_record(), name="gated", drain=60.0, observers=[Reported()]).run(handle)


async def endless() -> None:
    """Its handler does not return."""

    async def handle(_: Message) -> None:
        report("handling", NUMBER)
        try:
            await asyncio.Event().wait()
        finally:
            report("cut", NUMBER)

    await Consumer(one_record(), name="endless", drain=600.0, observers=[Reported()]).run(handle)


async def deaf() -> None:
    """It blocks its loop."""
    report("deaf")
    while True:
        signal.pause()


async def group() -> None:
    """Rows of a file for each process; the first one that gets the row `held` keeps it."""

    async def handle(message: Message) -> None:
        row = message.value.decode()
        if row == '"held"' and is_among_the_first("held", 1):
            report("held", NUMBER, os.getpid())
            await asyncio.Event().wait()
        store(row)
        report("stored")

    source = FileSource(f"rows/{NUMBER}.ndjson", state=f"{NUMBER}.sqlite")
    await Consumer(source, name="group", drain=5.0).run(handle)


async def crash_twice() -> None:
    if is_among_the_first("crash", 2):
        os._exit(7)
    report("up")
    await asyncio.Event().wait()


async def refuse() -> None:
    if NUMBER == "1":
        raise ConfigError("timeout: got -1; must be positive")
    report("up")
    await asyncio.Event().wait()


async def late() -> None:
    """Process 1 opens its consumer when the gate is opened."""
    if NUMBER == "1":
        await pass_gate()
    observers = [PrometheusConsumerObserver()]
    async with Consumer(one_record(), name="late", observers=observers) as consumer:
        run = asyncio.create_task(consumer.run(lambda _: None))
        await consumer.wait_ready()
        report("ready", NUMBER)
        await run


async def batching() -> None:
    async with Batcher(FileSink(f"{NUMBER}.jsonl"), name="batching") as batcher:
        await batcher.add(NUMBER)
        report("open")
        await asyncio.Event().wait()


def make_pipe() -> flow.Pipe:
    """It ends by itself."""
    log = MemoryLog([Record("t", 0, 0, b"a")])
    sink = FileSink(f"{NUMBER}.jsonl", encode=str)
    return flow.pipe(MemorySource(log, ends=True), Batcher(sink), lambda _: NUMBER)


pipe = make_pipe()
handlerless = Consumer(one_record())
