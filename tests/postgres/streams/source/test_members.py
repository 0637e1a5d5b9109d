"""Consumers that join and leave while a subscription has a backlog.

White box: a shorter interval of the checks.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from tests.postgres.streams.source.claims_help import plain
from tests.postgres.streams.source.test_failures import WITHIN, source

from sluicegate import Consumer
from sluicegate.consumer import MemorySubscriptions
from sluicegate.postgres.streams import options
from sluicegate.testing.conformance.source.subject import News

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate import Message
    from sluicegate.postgres import PostgresStreamSource

pytestmark = pytest.mark.usefixtures("real_clock")

STREAMS, EACH = 40, 10


class Crew:
    """The consumers of one subscription, and the messages they have handled."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.handled: dict[str, list[int]] = defaultdict(list)
        self.by: dict[int, int] = defaultdict(int)
        """The number of messages that each consumer has handled."""
        self.added = 0
        """The number of messages in each stream."""
        self.news = News()
        self._tasks = tasks
        self._consumers: dict[int, Consumer] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self.handled.values()))

    def join(self, source: PostgresStreamSource) -> None:
        """Start a consumer."""
        number = len(self._consumers)
        self._consumers[number] = Consumer(source, name=f"c{number}", ordering="partition")
        self._tasks.create_task(self._serve(number))

    async def _serve(self, number: int) -> None:
        async def handle(message: Message) -> None:
            self.handled[str(message.key)].append(int(message.header("version") or -1))
            self.by[number] += 1
            self.news.fire()

        async with self._consumers[number] as consumer:
            await consumer.run(handle)

    def leave(self, *numbers: int) -> None:
        """Stop consumers and wait for their orderly end."""
        for number in numbers:
            self._consumers[number].stop()

    async def until(self, count: int) -> None:
        """Wait until this many messages were handled."""
        await self.news.wait_for(lambda: self.count >= count)


async def fill(log: Log, crew: Crew, consumers: int) -> None:
    """Append a backlog, and more until this many consumers have handled some of it."""
    async with log.connected() as con:
        while crew.added == 0 or len(crew.by) < consumers:
            for number in range(STREAMS):
                await log.append(con, f"s-{number}", *range(EACH))
            crew.added += EACH


@pytest.mark.parametrize(("counts", "least"), [(True, 2), (False, 5)], ids=["even shares", "turns"])
async def test_the_number_of_consumers_changes_while_they_are_behind(
    log: Log, counts: bool, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4, S-T1, P5: each message is handled once and in the order of its stream, although slots
    move from one consumer to five and back to one. With turns, each of the five handles a part.
    """
    monkeypatch.setattr(options, "CHECK_EVERY", 0.02)
    subscriptions = MemorySubscriptions()

    def made() -> PostgresStreamSource:
        if counts:
            return source(log)
        own = MemorySubscriptions(shared_with=subscriptions)
        return plain(log, own, slots_at_once=6, hold=0.02)

    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as tasks:
        crew = Crew(tasks)
        crew.join(made())
        await fill(log, crew, 1)
        for _ in range(4):
            crew.join(made())
        await fill(log, crew, least)
        crew.leave(0, 1, 2, 3)
        await crew.until(STREAMS * crew.added)
        crew.leave(4)
    assert crew.handled == {f"s-{n}": [*range(crew.added)] for n in range(STREAMS)}
