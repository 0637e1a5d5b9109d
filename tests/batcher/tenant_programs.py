"""Programs of random calls on a batcher with tenants, and the complete log of a run."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sluicegate import (
    Backoff,
    Batcher,
    ClosedError,
    Limits,
    PermanentError,
    Retry,
    TransientError,
    stack,
)
from sluicegate.batcher import Tenants
from sluicegate.errors import KeyFailedError
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate import Batch


class Thing(NamedTuple):
    """An item."""

    tenant: Any
    key: Any
    number: int
    fault: str = ""
    """The name of the function that raises for it."""


class LookupFailed(Exception):
    """Raised by a user's function."""


class Writes:
    """A slow sink that sometimes fails and logs every attempt."""

    def __init__(self, log: list[Any], rng: random.Random, clock: FakeClock, *, safe: bool) -> None:
        self.key_prefix_safe = safe
        self._log = log
        self._rng = rng
        self._clock = clock

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def write(self, batch: Batch[Thing]) -> None:
        rng = self._rng
        times = (batch.oldest_at, batch.sealed_at, self._clock.now())
        numbers = tuple(item.number for item in batch)
        self._log.append(("write", batch.tenant, batch.reason.value, times, numbers))
        await self._clock.sleep(rng.choice((0.0, 0.1, 0.7, 3.0)))
        fate = rng.random()
        if fate < 0.1:
            raise TransientError("not now")
        if fate < 0.15:
            raise PermanentError("not this")


class Program:
    """A batcher and the calls on it, all from one seed."""

    def __init__(self, seed: int, *, yields: bool = False) -> None:
        self.rng = random.Random(seed)
        self.clock = FakeClock()
        self.log: list[Any] = []
        self._yields = yields
        self._number = 0
        self._names: list[Any] = [*range(self.rng.randint(1, 5)), "a", b"a", True, (1, 2), 0.5]
        del self._names[self.rng.randint(1, len(self._names)) :]
        self._faulty = self.rng.random() < 0.3
        self._looked: set[int] = set()
        self._receipts: list[tuple[int, Any]] = []
        self.batcher = self._made()

    def _made(self) -> Batcher[Thing]:
        rng = self.rng
        size, workers = rng.choice((1, 2, 3, 5, 20)), rng.choice((1, 1, 2, 4))
        given: dict[str, Any] = {}
        if rng.random() < 0.5:
            given["key"] = self._key
            given["on_key_failure"] = rng.choice(("skip", "skip", "pause", "fail"))
        if rng.random() < 0.4:
            cap = rng.choice((1, 3, 8, 30))
            given["tenants"] = Tenants(max_pending_items=cap, weights=self._weight)
        else:
            given["tenants"] = Tenants(weights=self._weight)
        retry = Retry(
            3, backoff=Backoff(base=0.3, longest=1.0, jitter="none", rng=random.Random(1))
        )
        sink: Any = Writes(self.log, random.Random(2), self.clock, safe=rng.random() < 0.5)
        return Batcher(
            stack(sink, retry) if rng.random() < 0.5 else sink,
            limits=Limits(
                max_items=size,
                max_delay=rng.choice((0.5, 2.0)),
                workers=workers,
                max_pending_items=(workers + 1) * size + rng.choice((0, 5, 60)),
            ),
            tenant=self._tenant,
            overflow=rng.choice(("block", "block", "reject", "drop_newest", "drop_oldest")),
            shutdown_deadline=rng.choice((1.0, 60.0)),
            clock=self.clock,
            **given,
        )

    def _tenant(self, item: Thing) -> Any:
        self._meddle(item)
        if item.fault == "tenant":
            raise LookupFailed(item.number)
        return [] if item.fault == "type" else item.tenant

    def _key(self, item: Thing) -> Any:
        if item.fault == "key":
            raise LookupFailed(item.number)
        return item.key

    def _weight(self, tenant: Any) -> float:
        if tenant == "a" and self._faulty and self._number % 7 == 0:
            raise LookupFailed(tenant)
        return 2.0 if tenant == 1 else 1.0

    def _meddle(self, item: Thing) -> None:
        """Log the first call for an item; the tenant function may read its own batcher."""
        if item.number % 5 == 0 and item.number not in self._looked:
            self._looked.add(item.number)
            self.look("inside")

    def look(self, what: str) -> None:
        """Log all counts."""
        stats = self.batcher.stats()
        stats.tally.verify()
        self.log.append((what, self.clock.now(), str(stats), str(self.batcher.tally())))

    def _thing(self) -> Thing:
        self._number += 1
        fault = ""
        if self._faulty and self.rng.random() < 0.05:
            fault = self.rng.choice(("tenant", "key", "type"))
        return Thing(self.rng.choice(self._names), self.rng.randint(0, 6), self._number, fault)

    async def run(self) -> list[Any]:
        """Run the program; return the log."""
        await self.batcher.__aenter__()
        producers = [asyncio.create_task(self._produce()) for _ in range(self.rng.randint(0, 2))]
        for _ in range(self.rng.randint(5, 60)):
            await self._step()
            self.look("after")
        report = await self.batcher.shutdown()
        await asyncio.gather(*producers)
        outcomes = [(number, receipt.outcome) for number, receipt in self._receipts]
        self.log.append((str(report), *_by_number(report.unsent, report.unknown), outcomes))
        return self.log

    async def _step(self) -> None:
        rng, batcher = self.rng, self.batcher
        kind = rng.choice(("add", "add", "submit", "try_add", "many", "flush", "wait", "resume"))
        things = [self._thing() for _ in range(rng.choice((1, 1, 2, 5, 30)))]
        match kind:
            case "flush":
                await self._tried(kind, batcher.flush(timeout=rng.choice((0.0, 1.0))))
            case "wait":
                await self.clock.advance(rng.choice((0.0, 0.1, 0.5, 5.0)))
            case "many":
                await self._tried(kind, batcher.add_many(things, timeout=rng.choice((0.0, 0.3))))
            case "resume":
                self._resume()
            case "try_add":
                for thing in things:
                    self._try_add(thing)
            case _:
                await self._add_each(kind, things)

    async def _add_each(self, kind: str, things: Iterable[Thing]) -> None:
        seconds = self.rng.choice((0.0, 0.0, 0.3, 5.0))
        for thing in things:
            if kind == "add":
                await self._tried(kind, self.batcher.add(thing, timeout=seconds))
            else:
                receipt = await self._tried(kind, self.batcher.submit(thing, timeout=seconds))
                if receipt is not None:
                    self._receipts.append((thing.number, receipt))

    async def _produce(self) -> None:
        for _ in range(self.rng.randint(1, 30)):
            await self._tried("produced", self.batcher.add(self._thing(), timeout=50.0))
            if self.rng.random() < 0.3:
                await self.clock.sleep(self.rng.choice((0.0, 0.2)))

    def _try_add(self, thing: Thing) -> None:
        try:
            self.log.append(("try_add", thing.number, self.batcher.try_add(thing)))
        except (LookupFailed, TypeError) as error:
            self.log.append(("try_add", thing.number, repr(error)))

    def _resume(self) -> None:
        for key in range(3):
            for tenant in self._names[:2]:
                try:
                    self.log.append(("resume", self.batcher.resume(key, tenant=tenant)))
                except Exception as error:
                    self.log.append(("resume", repr(error)))

    async def _tried(self, kind: str, call: Any) -> Any:
        answer = None
        try:
            answer = await call
        except (LookupFailed, TypeError, KeyFailedError, TimeoutError, ClosedError) as error:
            self.log.append((kind, self.clock.now(), repr(error)))
        except Exception as error:
            if type(error).__name__ not in {"LedgerFull", "ItemTooLarge"}:
                raise
            self.log.append((kind, self.clock.now(), repr(error)))
        else:
            self.log.append((kind, self.clock.now()))
        return answer


def log_of(seed: int) -> list[Any]:
    """The complete log of the program with this seed."""
    program = Program(seed)
    try:
        return program.clock.run(program.run())
    finally:
        program.clock.close()


def _by_number(*columns: Iterable[Thing]) -> list[list[int]]:
    """Sort by number, independently of the order of flights that end at the same time."""
    return [sorted(thing.number for thing in column) for column in columns]
