"""Killed and frozen processes, and a killed Redis: nothing is lost, and every key stays in order,
according to the destination.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisGone
from redis.exceptions import ResponseError
from tests.children import child

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from tests.redis_server import RedisServer

pytestmark = [pytest.mark.usefixtures("real_clock"), pytest.mark.timeout(90)]

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("kills_child.py")
PARTITIONS = 4
KEYS = 20
LEASE = 1.5
TOPICS = itertools.count()


class Group:
    """The processes of a group, and the lines that they write."""

    def __init__(self, url: str, audit: Path) -> None:
        self.topic = f"killed-{next(TOPICS)}"
        self.url = url
        self.audit = audit
        self.handled = 0
        self.news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def member(self) -> AsyncIterator[Process]:
        """Start a member; it is killed at the end if it still runs."""
        given = {"url": self.url, "audit": str(self.audit), "topic": self.topic}
        options = json.dumps({**given, "partitions": PARTITIONS, "lease": LEASE})
        async with child(
            sys.executable,
            str(PROGRAM),
            options,
            stdout=PIPE,
            cwd=ROOT,
            env={"PYTHONPATH": "src:."},
        ) as process:
            reader = asyncio.get_running_loop().create_task(self._read(process))
            try:
                yield process
            finally:
                reader.cancel()

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        async for _ in process.stdout:
            self.handled += 1
            self.news.set()

    async def until(self, count: int) -> None:
        """Wait until the members have reported this many messages."""
        while self.handled < count:
            self.news.clear()
            await self.news.wait()

    async def produce(self, numbers: range) -> None:
        """Append entries, each once, however often the server is unavailable."""
        async with Redis.from_url(self.url) as redis:
            for number in numbers:
                key, value = number % KEYS, number // KEYS
                stream, entry = f"{self.topic}:{key % PARTITIONS}", f"0-{number + 1}"
                while True:
                    try:
                        await redis.xadd(stream, {"key": str(key), "value": str(value)}, id=entry)
                    except RedisGone:
                        await asyncio.sleep(0.02)
                    except ResponseError:  # it is stored: the answer was lost
                        break
                    else:
                        break

    def lines(self) -> dict[int, list[int]]:
        """The lines at the destination by key, in order."""
        found: dict[int, list[int]] = defaultdict(list)
        whole, _, _ = self.audit.read_text().rpartition("\n")  # a line may be incomplete
        for line in whole.splitlines():
            key, value = map(int, line.split())
            found[key].append(value)
        return found

    async def until_all(self, count: int) -> None:
        """Wait until the destination has the first `count` entries."""
        wanted = count // KEYS
        while sum(len({*values}) for values in self.lines().values()) < wanted * KEYS:
            self.news.clear()
            await self.news.wait()

    def check(self, count: int) -> int:
        """Check that each entry is present and none precedes its predecessor; return the number of
        repeats.
        """
        lines = self.lines()
        for key in range(KEYS):
            values = lines[key]
            assert {*values} == {*range(count // KEYS)}, f"key {key}"
            reached = -1
            for value in values:
                assert value <= reached + 1, f"key {key}: {value} came after {reached}"
                reached = max(reached, value)
        return sum(map(len, lines.values())) - count

    async def unsettled(self) -> int:
        """The number of entries that are not acknowledged or not delivered."""
        async with Redis.from_url(self.url) as redis:
            groups = [
                (await redis.xinfo_groups(f"{self.topic}:{number}"))[0]
                for number in range(PARTITIONS)
            ]
        return sum(group["pending"] + group["lag"] for group in groups)


async def ended(*processes: Process) -> None:
    """Stop members by SIGTERM: they drain and acknowledge what they have handled. One that was
    started last may not have begun.
    """
    for process in processes:
        process.terminate()
    assert {await process.wait() for process in processes} <= {0, -signal.SIGTERM}


@pytest.mark.long
async def test_killed_processes_lose_nothing_and_keep_the_order(
    server: RedisServer, tmp_path: Path
) -> None:
    """consumer/C:N7, O-T23: the other members take over their streams with the pending entries."""
    group, count = Group(server.url, tmp_path / "audit"), 4000
    await group.produce(range(count // 2))
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        members = [await stack.enter_async_context(group.member()) for _ in range(2)]
        producing = asyncio.get_running_loop().create_task(group.produce(range(count // 2, count)))
        for reached in (300, 900, 1500):
            await group.until(reached)
            victim = members.pop(0)
            victim.kill()
            await victim.wait()
            members.append(await stack.enter_async_context(group.member()))
        await producing
        await group.until_all(count)
        await ended(*members)
    repeats = group.check(count)
    assert repeats <= 3 * 1000  # the window of each killed member
    assert await group.unsettled() == 0


@pytest.mark.long
async def test_a_process_that_was_frozen_beyond_its_lease_hides_nothing(
    server: RedisServer, tmp_path: Path
) -> None:
    """consumer/C:R2: reads and acknowledgements under its lost locks have no effect."""
    group, count = Group(server.url, tmp_path / "audit"), 2000
    await group.produce(range(count // 2))
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        frozen = await stack.enter_async_context(group.member())
        await group.until(200)
        frozen.send_signal(signal.SIGSTOP)
        other = await stack.enter_async_context(group.member())
        await group.until_all(count // 2)
        frozen.send_signal(signal.SIGCONT)
        await group.produce(range(count // 2, count))
        await group.until_all(count)
        await ended(frozen, other)
    lines = group.lines()
    assert all({*lines[key]} == {*range(count // KEYS)} for key in range(KEYS))
    assert await group.unsettled() == 0


@pytest.mark.long
async def test_a_redis_that_is_killed_under_load_costs_nothing(
    own_server: RedisServer, tmp_path: Path
) -> None:
    """O-T22, consumer/C:C6: consumers wait for it and repeat failed acknowledgements."""
    group, count = Group(own_server.url, tmp_path / "audit"), 4000
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        members = [await stack.enter_async_context(group.member()) for _ in range(2)]
        producing = asyncio.get_running_loop().create_task(group.produce(range(count)))
        for reached in (200, 1200):
            await group.until(reached)
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.start)
        await producing
        await group.until_all(count)
        await ended(*members)
    group.check(count)
    assert await group.unsettled() == 0
