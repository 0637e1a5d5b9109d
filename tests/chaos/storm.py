"""A faulty destination: for some time any call may fail in any way; afterwards only bad items are
refused.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from sluicegate import (
    Batch,
    Outcome,
    PermanentError,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    WriteResult,
)
from sluicegate.sinks import DeadLetterRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

Row = tuple[int, ...]
"""A written row: the numbers of the items merged into it, usually one."""

KEYS = 12
"""Items whose numbers are equal modulo this have the same key, and are all good or all bad."""

FAULTS = [
    "transient",
    "throttled",
    "unavailable",
    "unlisted",
    "partial",
    "half",
    "lost",
    "hang",
    "slow",
    "cancelled inside",
    "connection",
]


def rows_of(batch: Batch[Any]) -> list[Row]:
    """The rows of a batch of items or of dead letters."""
    return [item.item if isinstance(item, DeadLetterRecord) else item for item in batch]


class Storm:
    """One destination. `applied` is the ground truth, with repetitions."""

    def __init__(
        self,
        seed: int,
        *,
        calm_at: float,
        bad: frozenset[int],
        per_item: bool = True,
        deaf: bool = False,
        again: set[int] | None = None,
        lines: Callable[[Iterable[int]], set[Hashable]] = lambda items: set(),
    ) -> None:
        self.rng = random.Random(seed)
        self.applied: list[int] = []
        self.doubtful: set[int] = set()
        """Items of writes with an unknown effect."""
        self.sent_again: list[int] = []
        """Items that arrived although they were settled."""
        self.beside: list[set[Hashable]] = []
        """Lines that were in two writes at once."""
        self.running = 0
        self.most_running = 0
        self._lines = lines
        self._busy: list[set[Hashable]] = []
        self._bad = bad
        self._calm_at = calm_at
        self._per_item = per_item
        self._faults = [*FAULTS, "deaf"] if deaf else FAULTS
        self._settled = again if again is not None else set[int]()
        first = self.rng.uniform(0, calm_at)
        self._outage = (first, min(calm_at, first + self.rng.choice([0.0, 1.0, 20.0, 60.0])))
        self._share = self.rng.choice([0.1, 0.3, 0.6])

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        rows = rows_of(batch)
        self.sent_again += [item for row in rows for item in row if item in self._settled]
        lines = self._lines(item for row in rows for item in row)
        self.beside += [lines & other for other in self._busy if lines & other]
        self._busy.append(lines)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._weather(batch, rows)
        except (asyncio.CancelledError, UnknownOutcomeError):
            self._doubt(rows)
            raise
        finally:
            self.running -= 1
            self._busy.remove(lines)

    async def _weather(self, batch: Batch[Any], rows: list[Row]) -> WriteResult | None:
        rng = self.rng
        now = asyncio.get_running_loop().time()
        if self._outage[0] <= now < self._outage[1]:
            raise UnavailableError("outage")
        fault = (
            rng.choice(self._faults)
            if now < self._calm_at and rng.random() < self._share
            else "none"
        )
        await asyncio.sleep(rng.choice([0.0, 0.01, 0.3]))
        match fault:
            case "transient":
                raise TransientError("deadlock")
            case "throttled":
                raise ThrottledError("slow down", retry_after=rng.choice([None, 0.5, 3.0]))
            case "unavailable":
                raise UnavailableError("refused")
            case "unlisted":
                raise ZeroDivisionError
            case "connection":
                raise ConnectionResetError
            case "partial":
                return self._apply(
                    batch, rows, [place for place in range(len(rows)) if rng.random() < 0.5]
                )
            case "half":
                self._settle_half(batch, rows)
                await asyncio.sleep(rng.choice([0.0, 1.0]))
                raise TransientError("the other half")
            case "lost":
                self._take(row for row in rows if rng.random() < 0.5 and not self._is_bad(row))
                raise UnknownOutcomeError("no answer")
            case "hang":
                self._take(row for row in rows if rng.random() < 0.5 and not self._is_bad(row))
                await asyncio.get_running_loop().create_future()
            case "cancelled inside":
                raise asyncio.CancelledError
            case "slow":
                await asyncio.sleep(rng.uniform(0.0, 4.0))
            case "deaf":
                self._doubt(rows)
                await _deaf(rng.choice([1.0, 8.0, 60.0]))
            case _:
                pass
        return self._apply(batch, rows, ())

    def _apply(
        self, batch: Batch[Any], rows: list[Row], flaky: Iterable[int]
    ) -> WriteResult | None:
        errors: dict[int, BaseException] = {place: TransientError("this one") for place in flaky}
        refused = [place for place, row in enumerate(rows) if self._is_bad(row)]
        if refused and not self._per_item:
            raise PermanentError("something is wrong with this batch")
        errors.update({place: PermanentError("bad") for place in refused})
        self._take(row for place, row in enumerate(rows) if place not in errors)
        return WriteResult.failed(batch, errors) if errors else None

    def _settle_half(self, batch: Batch[Any], rows: list[Row]) -> None:
        half = [place for place in range(0, len(rows), 2) if not self._is_bad(rows[place])]
        self._take(rows[place] for place in half)
        batch.settle(half, Outcome.DELIVERED)

    def _take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.applied.extend(row)

    def _doubt(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.doubtful.update(row)

    def _is_bad(self, row: Row) -> bool:
        return row[0] % KEYS in self._bad


async def _deaf(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        try:
            await asyncio.sleep(until - loop.time())
        except asyncio.CancelledError:
            continue
