"""The ingest service as a separate process, over HTTP, in front of a PostgreSQL that is slow and is
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.children import child
from tests.examples.example import EXAMPLES, load

from sluicegate.testing import embedded_postgres as another_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sluicegate.testing import EmbeddedPostgres

CAPACITY = 20
CLIENTS = 60
ROW_SECONDS = 0.08  # so 12 rows a second, while 60 clients that wait 0.1 s each send some hundred
EVENT = "login" * 3000
MEGABYTE = 2**20
PLAIN = httpx.create_ssl_context(
    verify=False
)  # not needed here, and expensive to create for each client
SLOW_TABLE = f"""
CREATE TABLE events (id bigint PRIMARY KEY, action text NOT NULL);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep({ROW_SECONDS}); RETURN NULL; END';
CREATE TRIGGER slow AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION slow();
"""


class Service:
    """The process and its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def url(self) -> str:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip())
            if found := re.search(r"listening on (http://\S+)", self.lines[-1]):
                return found[1]
        raise AssertionError("\n".join(self.lines))

    async def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        self.lines += (await self.process.stderr.read()).decode().splitlines()
        return await self.process.wait()

    def final_tally(self) -> Counter[str]:
        (line,) = (line for line in self.lines if "shutdown of batcher 'ingest' complete" in line)
        return Counter(
            {
                name: int(count)
                for count, name in re.findall(r"(\d+) (accepted|delivered|duplicate|refused)", line)
            }
        )


@contextlib.asynccontextmanager
async def service(dsn: str, *options: str) -> AsyncIterator[Service]:
    command = [sys.executable, str(EXAMPLES / "ingest_service.py"), dsn, "--port", "0", *options]
    async with child(*command, stderr=asyncio.subprocess.PIPE) as process:
        yield Service(process)


async def query(dsn: str, sql: str) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return (
            [row[0] for row in await connection.fetch(sql)]
            if sql.startswith("SELECT")
            else [await connection.execute(sql)]
        )
    finally:
        await connection.close()


class Crowd:
    """Clients that send the next event as soon as the last one is answered, and record every
    response.
    """

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.answers: dict[int, int] = {}
        self.counts: Counter[int] = Counter()
        self.retry_after: set[str | None] = set()
        self.most_inside = 0
        self.least_memory = 2**63
        self.most_memory = 0
        self._process = psutil.Process(pid)
        self._changed = asyncio.Condition()

    async def client(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=60.0, verify=PLAIN) as client:
            with contextlib.suppress(httpx.TransportError):  # the service has closed
                while True:
                    await self.send(client)

    async def send(self, client: httpx.AsyncClient) -> None:
        number = len(self.answers)
        self.answers[number] = 0
        answer = await client.post("/events", json={"id": number, "action": EVENT})
        self.answers[number] = answer.status_code
        if answer.status_code == 503:
            self.retry_after.add(answer.headers.get("Retry-After"))
        async with self._changed:
            self.counts[answer.status_code] += 1
            self._changed.notify_all()

    async def watch(self) -> None:
        """Sample the ledger and the memory during the load."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60.0, verify=PLAIN) as client:
            with contextlib.suppress(httpx.TransportError):
                while True:
                    stats = dict(
                        line.split() for line in (await client.get("/stats")).text.splitlines()
                    )
                    assert int(stats["capacity"]) == CAPACITY
                    self.most_inside = max(self.most_inside, int(stats["inside"]))
                    memory = self._process.memory_info().rss
                    self.least_memory, self.most_memory = (
                        min(memory, self.least_memory),
                        max(memory, self.most_memory),
                    )

    async def more(self, status: int, count: int) -> None:
        """Return after this many more responses with this status."""
        goal = self.counts[status] + count
        await self._until(lambda: self.counts[status] >= goal)

    async def tenfold(self) -> None:
        """Return once eleven times as many requests were sent as accepted."""
        await self._until(lambda: self.counts.total() >= 11 * self.counts[202])

    async def _until(self, enough: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(enough)

    def with_answer(self, *statuses: int) -> set[int]:
        return {number for number, status in self.answers.items() if status in statuses}


async def overload_and_crashes(server: EmbeddedPostgres) -> tuple[Crowd, Service, int]:
    limits = ("--max-items", "10", "--max-pending-items", str(CAPACITY))
    async with service(server.dsn, *limits) as running, asyncio.TaskGroup() as group:
        crowd = Crowd(await running.url(), running.process.pid)
        group.create_task(crowd.watch())
        for _ in range(CLIENTS):
            group.create_task(crowd.client())
        await crowd.more(202, CAPACITY + 10)
        for _ in range(2):
            await asyncio.to_thread(server.kill)
            await crowd.more(503, 30)
            await asyncio.to_thread(server.start)
            await crowd.more(202, 10)
        await crowd.tenfold()
        code = await running.terminate()  # under load; the clients end with their connections
    return crowd, running, code


@pytest.mark.long
def test_what_was_accepted_is_in_the_table_once() -> None:
    """B-T37: overloaded tenfold, the database killed twice, stopped during the load: no accepted
    event is lost, and memory stays at the ledger's limit.

    Also batcher/B11, batcher/B13: the server stops, then the batcher drains, then the sink closes,
    and the process exits with 0.
    """
    with another_server({"fsync": "off"}) as server:
        asyncio.run(query(server.dsn, SLOW_TABLE))
        crowd, running, code = asyncio.run(overload_and_crashes(server))
        stored = asyncio.run(query(server.dsn, "SELECT id FROM events"))
    assert code == 0, running.lines
    assert set(crowd.counts) == {202, 503}
    assert crowd.counts.total() >= 10 * crowd.counts[202]
    assert None not in crowd.retry_after
    # exactly once: all events answered with 202, and besides them at most unanswered requests
    assert len(stored) == len(set(stored))
    assert crowd.with_answer(202) <= set(stored) <= crowd.with_answer(202, 0)
    tally = running.final_tally()
    assert tally["accepted"] == tally["delivered"] + tally["duplicate"] == len(stored)
    assert 0 < crowd.most_inside <= CAPACITY
    kept = crowd.counts.total() * len(EVENT) / MEGABYTE  # if nothing were refused
    assert crowd.most_memory - crowd.least_memory < kept * MEGABYTE / 2


def test_what_it_answers(embedded_postgres: EmbeddedPostgres) -> None:
    """Every response except the refusals, and the load script within the service's capacity."""

    async def scenario() -> tuple[Counter[int], httpx.Response, Service, int]:
        await query(embedded_postgres.dsn, "DROP TABLE IF EXISTS events")
        async with service(embedded_postgres.dsn) as running:
            url = await running.url()
            async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=PLAIN) as client:
                assert (await client.get("/ready")).text == "open\n"
                bad = [
                    "{",
                    "[1]",
                    "{}",
                    '{"id": true, "action": ""}',
                    '{"id": 1, "action": "\\u0000"}',
                    '{"id": 1, "action": "\\ud800"}',
                ]
                bad += ['{"id": 9223372036854775808, "action": ""}', "[" * 10_000, "\xff"]
                assert [
                    (await client.post("/events", content=body.encode("latin-1"))).status_code
                    for body in bad
                ] == [400] * len(bad)
                assert (await client.post("/events", content=b" " * 20_000)).status_code == 413
                assert (await client.get("/events")).status_code == 405
                assert "accepted 0\n" in (await client.get("/stats")).text
            statuses = await load("ingest_load").load(url, rate=200, seconds=0.5)
            async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=PLAIN) as client:
                metrics = await client.get("/metrics")
            return statuses, metrics, running, await running.terminate()

    statuses, metrics, running, code = asyncio.run(scenario())
    assert statuses == {202: 100}
    assert metrics.headers["Content-Type"].startswith("text/plain; version=")
    samples = [
        sample
        for family in text_string_to_metric_families(metrics.text)
        for sample in family.samples
    ]
    assert [sample.value for sample in samples if sample.name == "batcher_enqueued_total"] == [100]
    assert [
        sample.value for sample in samples if sample.name == "batcher_queue_capacity_items"
    ] == [10_000]
    assert code == 0
    assert running.final_tally() == {"accepted": 100, "delivered": 100}
    assert asyncio.run(query(embedded_postgres.dsn, "SELECT id FROM events ORDER BY id")) == list(
        range(100)
    )


def test_what_cannot_be_written_is_reported(embedded_postgres: EmbeddedPostgres) -> None:
    """B-T37: stopped while its database is down, it ends by its deadline, reports unsent events,
    and exits with a code other than 0.
    """

    async def scenario() -> tuple[list[int], Service, int]:
        async with service(embedded_postgres.dsn, "--shutdown-deadline", "1") as running:
            url = await running.url()
            async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=PLAIN) as client:
                await asyncio.to_thread(embedded_postgres.kill)
                statuses = [
                    (
                        await client.post("/events", json={"id": 1000 + number, "action": "login"})
                    ).status_code
                    for number in range(5)
                ]
            return statuses, running, await running.terminate()

    try:
        statuses, running, code = asyncio.run(scenario())
    finally:
        embedded_postgres.start()
    assert statuses == [202] * 5
    assert code == 1
    assert any("INCOMPLETE" in line and "5 unsent" in line for line in running.lines), running.lines
