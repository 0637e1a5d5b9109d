"""A server in a separate process, and clients that record every response."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
from tests.children import child
from tests.examples.example import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

APPS = EXAMPLES / "apps"
PLAIN = httpx.create_ssl_context(verify=False)  # not needed here, and expensive per client
TABLE = (
    "CREATE TABLE IF NOT EXISTS events (id bigint PRIMARY KEY, action text CHECK (action <> 'bad'))"
)

UNHURRIED = {"MAX_DELAY": "60"}  # so that the last events are written by the drain or not at all


class Service:
    """A process that logs to stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line(self, pattern: str) -> re.Match[str]:
        """Read the log up to a line with `pattern`."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip())
            if found := re.search(pattern, self.lines[-1]):
                return found
        raise AssertionError("\n".join(self.lines))

    async def url(self) -> str:
        return (await self.line(r"http://127\.0\.0\.1:\d+"))[0]

    async def terminate(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        self.lines += (await self.process.stderr.read()).decode().splitlines()
        return await self.process.wait()

    def reports(self) -> list[Counter[str]]:
        """The tally of each shutdown in the log."""
        return [
            Counter({name: int(count) for count, name in re.findall(r"(\d+) (\w+)", line)})
            for line in self.lines
            if "shutdown of batcher" in line
            for line in [line.split(" s: ", 1)[1].split(" (spent")[0]]
        ]


@contextlib.asynccontextmanager
async def service(
    *command: str, env: Mapping[str, str], folder: Path = APPS
) -> AsyncIterator[Service]:
    async with child(
        *command,
        cwd=folder,
        env={**os.environ, **env},
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    ) as process:
        made = Service(process)
        try:
            yield made
        except BaseException:
            sys.stderr.write("\n".join(made.lines[-100:]))
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Crowd:
    """Clients that send the next event as soon as the last one is answered."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.statuses: dict[int, int] = {}
        self.retry_after: set[str | None] = set()
        self.cut: set[int] = set()
        self._numbers = itertools.count()
        self._changed = asyncio.Condition()
        self._counts: Counter[int] = Counter()

    async def client(self) -> None:
        """Send events until the server is gone."""
        async with httpx.AsyncClient(base_url=self.url, timeout=20.0, verify=PLAIN) as client:
            while await self._sent(client, next(self._numbers)):
                pass

    async def _sent(self, client: httpx.AsyncClient, number: int) -> bool:
        try:
            answer = await client.post("/events", json={"id": number, "action": "login"})
        except httpx.ConnectError:
            return False
        except httpx.TransportError:
            self.cut.add(number)
            return False
        self.statuses[number] = answer.status_code
        if answer.status_code == 503:
            self.retry_after.add(answer.headers.get("Retry-After"))
        async with self._changed:
            self._counts[answer.status_code] += 1
            self._changed.notify_all()
        return True

    async def more(self, status: int, count: int) -> None:
        """Return after this many more responses with this status."""
        goal = self._counts[status] + count
        async with self._changed:
            await self._changed.wait_for(lambda: self._counts[status] >= goal)

    @property
    def accepted(self) -> set[int]:
        return {number for number, status in self.statuses.items() if 200 <= status < 300}


@contextlib.asynccontextmanager
async def crowd_of(clients: int, url: str) -> AsyncIterator[Crowd]:
    """Running clients; leaving the block waits until the server is gone."""
    crowd = Crowd(url)
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(crowd.client())
        yield crowd


async def query(dsn: str, *statements: str) -> list[Any]:
    """Run statements; return the first column of the last one."""
    connection = await asyncpg.connect(dsn)
    try:
        rows: list[Any] = []
        for statement in statements:
            rows = await connection.fetch(statement)
        return [row[0] for row in rows]
    finally:
        await connection.close()


def assert_nothing_is_lost(crowd: Crowd, stored: list[int]) -> None:
    """Check that every event answered with 2xx is stored once; besides these, at most unanswered
    ones.
    """
    assert len(stored) == len(set(stored))
    assert crowd.accepted <= set(stored) <= crowd.accepted | crowd.cut
    assert len(set(stored) - crowd.cut) == len(crowd.accepted)
