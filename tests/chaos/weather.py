"""A faulty database, and a shutdown at a random moment: one seeded run with the database's own log
as the truth.

The fault changes every few seconds: none, an outage (no answers), a refusal (a permission revoked,
a table renamed), a throttle, a standby (read-only), a kill (connections break during a write,
before or after its commit). No item is bad, so none may be given up.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    DeadLetter,
    Limits,
    Outcome,
    RefusedError,
    Retry,
    ThrottledError,
    Timeout,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    stack,
)
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from sluicegate.batcher import ShutdownReport

WEATHER = ("calm", "calm", "outage", "refusal", "throttle", "kill", "standby")
CUT = 1.0
"""Maximum seconds before the deadline at which writes are cut."""


LONGEST_TRY = 0.4


class Database:
    """Stores a set of items, each at most once, and records its commits."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.rows: set[int] = set()
        self.doubtful: set[int] = set()
        """Items of writes whose commit is unknown to the client."""
        self.weather = "calm"
        self.last_try = 0.0
        self._killed = asyncio.Event()

    def turn(self) -> None:
        self.weather = self._rng.choice(WEATHER)
        if self.weather == "kill":
            self._killed.set()
            self._killed = asyncio.Event()

    async def write(self, batch: Batch[int]) -> None:
        self.last_try = asyncio.get_running_loop().time()
        match self.weather:
            case "outage":
                raise UnavailableError("connection refused")
            case "refusal":
                await asyncio.sleep(0.002)
                raise RefusedError("permission denied for table events", repair="grant INSERT")
            case "standby":
                raise RefusedError(
                    "cannot execute INSERT in a read-only transaction",
                    repair="connect to the primary",
                )
            case "throttle" if self._rng.random() < 0.7:
                raise ThrottledError(
                    "too many connections", retry_after=self._rng.choice([None, 0.5, 3.0])
                )
            case _:
                await self._commit(list(batch))

    async def _commit(self, items: list[int]) -> None:
        killed = asyncio.ensure_future(self._killed.wait())
        try:
            await asyncio.wait([killed], timeout=self._rng.choice([0.005, 0.05, 0.4]))
            if killed.done():
                raise TransientError("the connection was lost before COMMIT")
        except asyncio.CancelledError:
            self.doubtful.update(items)
            if self._rng.random() < 0.5:
                self.rows.update(items)
            raise
        finally:
            killed.cancel()
        self.rows.update(items)
        if self.weather == "kill" and self._rng.random() < 0.5:
            self.doubtful.update(items)
            raise UnknownOutcomeError("no answer to COMMIT")


class Letters:
    """Accepts every record."""

    def __init__(self) -> None:
        self.items: list[int] = []

    async def write(self, batch: Batch[Any]) -> None:
        self.items += [record.item for record in batch]


class Weather:
    """One run."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.accepted: list[int] = []

    def run(self) -> None:
        """Run it, with every check."""
        clock = FakeClock(max_rounds=200_000)
        with clock:
            clock.run(self._run(clock))
            assert clock.leftovers() == []

    async def _run(self, clock: FakeClock) -> None:
        rng = self._rng
        database, letters = Database(rng), Letters()
        workers = rng.choice([1, 2, 4, 8])
        keyed = rng.random() < 0.5
        limits = Limits(
            max_items=rng.choice([1, 10, 50]),
            workers=workers,
            max_delay=rng.choice([0.05, 1.0]),
            max_pending_items=2_000,
        )
        sink = stack(
            database,
            Timeout(5.0),
            Retry(attempts=50, backoff=Backoff(rng=random.Random(rng.random()))),
            DeadLetter(letters),
        )
        deadline = rng.choice([0.0, 0.5, 3.0, 8.0, 25.0])
        async with Batcher(
            sink, limits=limits, key=_key if keyed else None, shutdown_deadline=deadline
        ) as batcher:
            changing = asyncio.create_task(self._change(database))
            adding = asyncio.create_task(self._add(batcher))
            await asyncio.sleep(rng.uniform(0.0, 40.0))
            adding.cancel()
            await asyncio.wait([adding])
            began = clock.now()
            report = await batcher.shutdown()
            changing.cancel()
            await asyncio.wait([changing])
        self._check(report, database, letters)
        self._check_time(report, database, began, deadline)

    async def _change(self, database: Database) -> None:
        while True:
            await asyncio.sleep(self._rng.choice([0.3, 1.0, 4.0, 15.0]))
            database.turn()

    async def _add(self, batcher: Batcher[int]) -> None:
        while True:
            number = len(self.accepted)
            await batcher.add(number)
            self.accepted.append(number)
            await asyncio.sleep(self._rng.choice([0.0, 0.001, 0.05]))

    def _check(self, report: ShutdownReport[int], database: Database, letters: Letters) -> None:
        report.verify()
        tally = report.tally
        assert tally.accepted - len(self.accepted) in {
            0,
            1,
        }  # cancelled right after it was accepted
        assert letters.items == []
        assert tally.rejected == tally.dead_lettered == tally.dropped == 0
        unsent, unknown = set(report.unsent), set(report.unknown)
        assert not unsent & database.rows, "handed back as unsent, and stored"
        delivered = set(range(tally.accepted)) - unsent - unknown
        assert delivered <= database.rows, "called delivered, and not stored"
        assert len(delivered) == tally.of(Outcome.DELIVERED)
        assert unknown <= database.doubtful, "called unknown, although the database's log can tell"

    @staticmethod
    def _check_time(
        report: ShutdownReport[int], database: Database, began: float, deadline: float
    ) -> None:
        assert report.seconds <= deadline + 0.05
        if report.unsent or report.unknown:
            reserve = min(0.2 * deadline, CUT)
            assert report.seconds >= deadline - reserve - LONGEST_TRY - 0.1, (
                "given up with time left"
            )
            if deadline >= 3.0:
                assert database.last_try > began


def _key(item: int) -> int:
    return item % 20
