"""Series for the dashboards: the scrapes of our exporters during ten minutes of virtual time, in a
real Prometheus.

White box: figures of queues and logs made by hand.

The destination of the batchers and of the pipe is down for a minute and slow for 100 seconds; some
items and messages fail for good.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import subprocess
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import urlopen

import tenacity
from prometheus_client import CollectorRegistry
from tests.postgres.queues import test_queue_metrics as queues
from tests.postgres.streams import test_stream_metrics as streams

from sluicegate import (
    Batcher,
    Consumer,
    DeadLetter,
    Limits,
    Nak,
    PermanentError,
    Retry,
    ToDeadLetter,
    UnavailableError,
    flow,
    stack,
)
from sluicegate.consumer import MemoryLog, MemorySource, Poison
from sluicegate.postgres import PrometheusQueueObserver, PrometheusStreamObserver
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import PrometheusConsumerObserver, PrometheusObserver
from sluicegate.testing import FakeClock
from sluicegate.testing.servers.program import ServerProgram, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sluicegate import Message
    from sluicegate.postgres.queues.stats import QueueFigures
    from sluicegate.postgres.records.monitor import MonitorStats
    from sluicegate.postgres.streams.stats import LogFigures

BEGIN = 1_767_614_400
"""When the first scrape was: 2026-01-05 12:00 UTC."""
SECONDS = 600
EVERY = 15
"""Seconds between two scrapes."""
DOWN, SLOW = (200, 260), (400, 500)
"""When the destination is down, and when it is slow, in seconds."""


class Destination:
    """Writes on virtual time, with an outage and a slow time."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._random = random.Random(1)

    async def __call__(self, items: Sequence[Any]) -> None:
        now = self._clock.now()
        await self._clock.sleep(
            self._random.uniform(0.01, 0.1) * (20 if SLOW[0] < now < SLOW[1] else 1)
        )
        if DOWN[0] < now < DOWN[1]:
            raise UnavailableError("connection refused")
        if len(items) == 1 and self._random.random() < 0.9:
            raise PermanentError("a bad row")

    def sink(self, *more: Any) -> Any:
        return stack(self, Retry(backoff=tenacity.wait_fixed(5.0)), *more)


class Workload:
    """Batchers, a consumer, a pipe, and monitors with figures made by hand, in one registry."""

    def __init__(self, clock: FakeClock, registry: CollectorRegistry, folder: str) -> None:
        self._clock = clock
        self._random = random.Random(2)
        self._logs = MemoryLog(), MemoryLog()
        observed: Any = {"observers": [PrometheusConsumerObserver(registry, durations=True)]}
        destination = Destination(clock)
        limits = Limits(max_items=50, max_delay=1.0, workers=2, max_pending_items=5000)
        self.batchers = [
            Batcher[str](
                destination.sink(*more),
                name=name,
                limits=limits,
                tenant=lambda item: item[:4],
                observers=[PrometheusObserver(registry, tenants=3)],
            )
            for name, more in {"audit": [DeadLetter(MemorySink())], "metrics": []}.items()
        ]
        self.batchers.append(
            Batcher[str](
                destination.sink(DeadLetter(MemorySink())),
                name="readings",
                limits=limits,
                spool=flow.Spool(folder, max_items=100_000, durability="os"),
                observers=[PrometheusObserver(registry)],
            )
        )
        self.consumer = Consumer(
            MemorySource(self._logs[0], clock=clock),
            name="billing",
            clock=clock,
            poison=Poison("skip", dead_letters=MemorySink()),
            **observed,
        )
        rows = Batcher[Any](
            destination.sink(DeadLetter(MemorySink())),
            limits=limits,
            clock=clock,
            observers=[PrometheusObserver(registry)],
        )
        self.pipe = flow.pipe(
            MemorySource(self._logs[1], clock=clock), rows, name="orders-to-pg", **observed
        )
        PrometheusQueueObserver(registry).on_open("shop", self._queues)
        PrometheusStreamObserver(registry).on_open("log", self._streams)

    async def produce(self) -> None:
        """Add items, records and messages."""
        for second in range(SECONDS):
            busy = 1 + math.sin(second / 100)
            for batcher in self.batchers:
                for _ in range(round(4 * busy)):
                    batcher.try_add(f"ten{self._random.randint(1, 3)}")
            for number in range(round(2 * busy)):
                key = f"k{self._random.randint(1, 20)}"
                for log, topic in zip(self._logs, ("payments", "orders"), strict=True):
                    log.produce(
                        topic, b"x", key=key, partition=number % 2, timestamp=self._milliseconds()
                    )
            await self._clock.sleep(1)

    async def handle(self, message: Message) -> object:
        """Take longer than usual at times; fail at times."""
        await self._clock.sleep(self._random.uniform(0.05, 0.4))
        chance = self._random.random()
        if chance > 0.99:
            return ToDeadLetter("old")
        if chance > 0.98:
            raise PermanentError("a bad message")
        return Nak(delay=5.0) if chance > 0.95 else None

    def _milliseconds(self) -> int:
        return round(self._clock.wall_time() * 1000)

    def _wave(self, most: float) -> int:
        """A number that rises and falls, and rises most when the destination is slow."""
        now = self._clock.now()
        slow = 1 if SLOW[0] < now < SLOW[1] else 0.2
        return round(most * slow * (1 + math.sin(now / 75)) / 2)

    def _queues(self) -> MonitorStats[QueueFigures]:
        wave, polls = self._wave, int(self._clock.now() / EVERY)
        mails = replace(
            queues.MAILS,
            jobs=wave(900),
            ready=wave(60),
            bells=wave(9),
            oldest_seconds=wave(240),
            delayed=40,
            leased=8,
            dead=3 + polls // 40,
            blocked=polls // 90,
        )
        figures = replace(queues.FIGURES, queues={"mails": mails, "unread": None})
        return replace(queues.STATS, polls=polls, figures=figures)

    def _streams(self) -> MonitorStats[LogFigures]:
        wave, polls = self._wave, int(self._clock.now() / EVERY)
        one = streams.FIGURES.subscriptions["s"]
        assert one.backlog is not None
        lags = replace(
            one.backlog, messages=wave(20_000), seconds=wave(300), waiting_slots=wave(64)
        )
        figures = replace(
            streams.FIGURES,
            horizon=replace(
                streams.FIGURES.horizon,
                position=polls * 900,
                last=polls * 900 + wave(400),
                age=wave(20),
            ),
            subscriptions={**streams.FIGURES.subscriptions, "s": replace(one, backlog=lags)},
        )
        return replace(streams.STATS, polls=polls, figures=figures)


def scraped(registry: CollectorRegistry, at: float) -> Iterator[str]:
    """The samples of a scrape in OpenMetrics format, `at` seconds after the first one."""
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = {"instance": "shop-0:8080", "job": "shop", **sample.labels}
                told = ",".join(f'{label}="{value}"' for label, value in labels.items())
                yield f"{sample.name}{{{told}}} {float(sample.value)} {BEGIN + at}\n"


def record() -> str:
    """Run the workload; return all scrapes in OpenMetrics format, with times."""
    lines: list[str] = []
    registry = CollectorRegistry()

    async def scrape(clock: FakeClock) -> None:
        for at in range(0, SECONDS, EVERY):
            await clock.sleep(at - clock.now())
            lines.extend(scraped(registry, at))

    async def main(clock: FakeClock) -> None:
        async with AsyncExitStack() as opened:
            folder = opened.enter_context(TemporaryDirectory())
            work = Workload(clock, registry, folder)
            for batcher in work.batchers:
                await opened.enter_async_context(batcher)
            await opened.enter_async_context(work.consumer)
            running = [
                asyncio.create_task(each)
                for each in (work.consumer.run(work.handle), work.pipe.run(), work.produce())
            ]
            await scrape(clock)
            work.consumer.stop()
            work.pipe.stop()
            await asyncio.gather(*running)

    logging.disable(logging.ERROR)  # the failures are wanted
    try:
        with FakeClock() as clock:
            clock.run(main(clock))
    finally:
        logging.disable(logging.NOTSET)
    return "".join(lines) + "# EOF\n"


class Prometheus:
    """A running server with recorded series."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str, **arguments: object) -> Any:
        """The data of an answer of the API, without warnings."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(arguments, doseq=True)}"
        with urlopen(url, timeout=30) as response:
            answer = json.load(response)
        assert answer["status"] == "success"
        assert not answer.get("warnings")
        return answer["data"]

    def series(self, expression: str) -> list[Any]:
        """The series of a query over the whole record, with the variables of Grafana at `All`."""
        end = BEGIN + SECONDS - EVERY
        found = self.get(
            "query_range", query=with_all(expression), start=BEGIN, end=end, step=EVERY
        )
        series: list[Any] = found["result"]
        return series


def with_all(expression: str) -> str:
    """The expression with every variable of Grafana at `All`."""
    known = expression.replace("$__rate_interval", "1m")
    return re.sub(r'"\$\w+"', '".*"', known)


@contextmanager
def serving(programs: Path, text: str) -> Iterator[Prometheus]:
    """A server of `programs`, a folder, with these series."""
    port = free_port()
    server = ServerProgram("Prometheus", _is_ready)
    try:
        (server.home / "series.txt").write_text(text)
        (server.home / "empty.yml").write_text("{}")
        subprocess.run(
            [
                programs / "promtool",
                "tsdb",
                "create-blocks-from",
                "openmetrics",
                "series.txt",
                "data",
            ],
            cwd=server.home,
            check=True,
            capture_output=True,
            timeout=60,
        )
        options = [
            "--config.file=empty.yml",
            "--storage.tsdb.path=data",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        # its log goes to the output, in which `_is_ready` waits for a line
        server.configure(
            ["sh", "-c", 'exec "$@" 2>&1', "sh", str(programs / "prometheus"), *options]
        )
        server.start()
        yield Prometheus(port)
    finally:
        server.close()


def _is_ready(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    return any(b"Server is ready" in line for line in process.stdout)
