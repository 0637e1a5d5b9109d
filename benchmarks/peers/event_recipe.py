"""Events that are completed later, by hand: a task for each event, a lock for each key and one for
the partition, and positions in order. Without timeouts, retries, limits or a drain; locks are never
removed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from .task_recipe import Host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sluicegate.consumer import Source, SourceRecord

    Process = Callable[[object, object], Awaitable[object]]


async def complete_later(source: Source, process: Process, *, inside: int, most: int) -> int:
    """Handle all records of a source: handlers and finalisers in the order of their partition, jobs
    of a key one after another. Returns the position.
    """
    semaphore, turn = asyncio.Semaphore(inside), asyncio.Lock()
    locks: defaultdict[object, asyncio.Lock] = defaultdict(asyncio.Lock)
    tasks: set[asyncio.Task[None]] = set()
    waiting: deque[SourceRecord] = deque()
    complete: set[SourceRecord] = set()
    position = 0

    async def handle(record: SourceRecord) -> None:
        nonlocal position
        try:
            async with locks[record.key]:
                async with turn:
                    """The handler."""
                await process(record.key, record.value)
                async with turn:
                    """The finaliser."""
            complete.add(record)
            while waiting and waiting[0] in complete:
                complete.remove(waiting[0])
                position = waiting.popleft().offset + 1
        finally:
            semaphore.release()

    host = Host()
    async with source.open(host):
        while (fetched := await source.fetch(host.claims, most)) is not None:
            for each in fetched:
                for record in each.records:
                    await semaphore.acquire()
                    waiting.append(record)
                    task = asyncio.create_task(handle(record))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        while tasks:
            await asyncio.wait(tasks)
    return position
