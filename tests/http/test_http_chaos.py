"""A server with every fault: throttles, errors, silence, partial successes and broken connections,
before and after it applied the items.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.http.http_help import Reply, Request, Server, hang, serving

from sluicegate import (
    Backoff,
    Batcher,
    Limits,
    PermanentError,
    Retry,
    ThrottledError,
    TransientError,
    WriteResult,
    stack,
)
from sluicegate.http import HttpAccess, HttpResponse, HttpSink

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.batcher import LoopClock

BAD = 997
"""The server always refuses one of this many items."""
MOODS = {
    "fine": 50,
    "partial": 20,
    "429": 5,
    "500": 8,
    "503": 3,
    "cut": 5,
    "lost": 4,
    "silent": 2,
    "late": 2,
}
ERRORS = {400: PermanentError, 429: ThrottledError, 500: TransientError}


class WorstDay:
    """A server with all faults: `taken` are the applied items, `seen` those whose success the
    client has read.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.taken: Counter[int] = Counter()
        self.seen: set[int] = set()
        self.sent_again: list[int] = []
        self.moods: Counter[str] = Counter()

    async def __call__(self, request: Request) -> Reply:
        items = [item["id"] for item in request.items]
        self.sent_again += [item for item in items if item in self.seen]
        mood = self._mood()
        if mood in {"429", "500", "503"}:
            return Reply(int(mood), headers={"retry-after": "0.001"})
        if mood in {"cut", "silent"}:
            return Reply(cut=True) if mood == "cut" else await hang()(request)
        statuses = [
            400
            if item % BAD == 0
            else self.rng.choice([200, 200, 429, 500])
            if mood == "partial"
            else 200
            for item in items
        ]
        self.taken.update(
            item for item, status in zip(items, statuses, strict=True) if status == 200
        )
        if mood in {"lost", "late"}:
            return Reply(cut=True) if mood == "lost" else await hang()(request)
        return Reply(207, json.dumps(statuses).encode(), {"retry-after": "0.001"})

    def _mood(self) -> str:
        """Each fault once, then by weight."""
        untried = [mood for mood in MOODS if mood not in self.moods]
        (mood,) = untried[:1] or self.rng.choices(list(MOODS), weights=list(MOODS.values()))
        self.moods[mood] += 1
        return mood

    def parse(self, response: HttpResponse, batch: Batch[Any]) -> WriteResult:
        """The client's reading of a response, recorded at that moment."""
        statuses = json.loads(response.body)
        self.seen.update(
            item["id"] for item, status in zip(batch, statuses, strict=True) if status == 200
        )
        return WriteResult.from_outcomes(
            batch, [self._error(status, response.retry_after) for status in statuses]
        )

    @staticmethod
    def _error(status: int, retry_after: float | None) -> Exception | None:
        if status == 200:
            return None
        return (
            ThrottledError("slow", retry_after=retry_after)
            if status == 429
            else ERRORS[status](str(status))
        )


async def live_through(count: int, seed: int) -> None:
    """Write every item to that server; the batcher logs the errors of the bad ones, and nothing
    else.
    """
    day = WorstDay(seed)
    server = Server()
    server.default = day
    async with serving(server):
        sink = stack(
            HttpSink(HttpAccess(server.url, timeout=0.25), parse=day.parse, compression="gzip"),
            Retry(
                attempts=1_000, backoff=Backoff(base=0.001, longest=0.002, rng=random.Random(seed))
            ),
        )
        async with Batcher(sink, limits=Limits(max_items=200, workers=8)) as batcher:
            for number in range(count):
                await batcher.add({"id": number})
            await batcher.flush()
            tally = batcher.stats().tally
    bad = set(range(0, count, BAD))
    assert day.sent_again == []
    assert tally.delivered == count - len(bad)
    assert tally.rejected + tally.unknown == len(bad), (
        "refused; after a try that may have been applied, unknown"
    )
    assert day.seen == set(day.taken) == set(range(count)) - bad
    assert set(day.moods) == set(MOODS)


@pytest.mark.parametrize("seed", range(2))
async def test_every_delivered_item_is_there_and_none_is_sent_after_its_success_was_seen(
    real_clock: LoopClock, seed: int
) -> None:
    """B-T18, B-T41, batcher/4a.5: with few items, in every test run."""
    await live_through(8_000, seed)


@pytest.mark.soak
async def test_a_hundred_thousand_items(real_clock: LoopClock) -> None:
    """The same, 100,000 items."""
    await live_through(100_000, 7)
