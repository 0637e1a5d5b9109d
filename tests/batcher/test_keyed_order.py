"""Order per key under every event that affects a batch, over many seeds."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from keyed_help import Destination, Item, Lane, key_of, tenant_of
from tests.seeds import run_by

from sluicegate import (
    AddTimeout,
    Backoff,
    Batcher,
    ClosedError,
    DeadLetter,
    Limits,
    Observer,
    Outcome,
    PermanentError,
    Retry,
    Timeout,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    WriteResult,
    stack,
)
from sluicegate.batcher import Tenants
from sluicegate.errors import KeyFailedError
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Batch, Receipt

SOME, MORE = 64, 160
MANY = 5_000


class Chaos:
    """A destination with random behaviour; item by item if it is safe for prefixes."""

    def __init__(self, rng: random.Random, *, prefix_safe: bool) -> None:
        self._rng = rng
        self._prefix_safe = prefix_safe
        self._down_until = 0.0
        self.doubtful: set[Item] = set()

    async def __call__(self, sink: Destination, batch: Batch[Item]) -> WriteResult | None:
        rng = self._rng
        loop = asyncio.get_running_loop()
        kind = rng.choice(
            [
                "ok",
                "ok",
                "ok",
                "partial",
                "partial",
                "whole",
                "down",
                "unknown",
                "hang",
                "deaf",
                "settle",
            ]
        )
        if loop.time() < self._down_until:
            raise UnavailableError("down")
        if kind == "down":
            self._down_until = loop.time() + rng.choice([0.5, 20.0])
            raise UnavailableError("down")
        try:
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.01, 0.3]))
            if kind == "hang":
                await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            self.doubtful.update(batch)
            raise
        if kind == "whole":
            raise rng.choice([PermanentError, TransientError])("whole")
        if kind == "unknown":
            self.doubtful.update(batch)
            sink.apply(*(item for item in batch if rng.random() < 0.5))
            raise UnknownOutcomeError("who knows")
        if kind == "deaf":
            self.doubtful.update(batch)
            await _deaf(rng.choice([3.0, 15.0]))
        errors = self._refused(batch) if kind in {"partial", "settle"} else {}
        good = [index for index in range(len(batch)) if index not in errors]
        sink.apply(*(batch[index] for index in good))
        if kind == "settle":
            batch.settle(good, Outcome.DELIVERED)
            await asyncio.sleep(rng.choice([0.0, 0.2]))
        return WriteResult.failed(batch, errors)

    def _refused(self, batch: Batch[Item]) -> dict[int, BaseException]:
        errors: dict[int, BaseException] = {}
        failed: set[Any] = set()
        for index, item in enumerate(batch):
            if self._prefix_safe and item.key in failed:
                errors[index] = self._rng.choice([PermanentError, TransientError])("not even tried")
            elif self._rng.random() < 0.3:
                errors[index] = self._rng.choice([PermanentError, TransientError])("refused")
                failed.add(item.key)
        return errors


async def _deaf(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        try:
            await asyncio.sleep(until - loop.time())
        except asyncio.CancelledError:
            continue


class Run(Observer):
    """One batcher, its producers, its destination and its shutdown, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.prefix_safe = rng.random() < 0.5
        self.chaos = Chaos(rng, prefix_safe=self.prefix_safe)
        self.sink = Destination(self.chaos, prefix_safe=self.prefix_safe)
        self.tenants = rng.choice([0, 0, 1, 2, 3])
        self.lanes = self.some_lanes()
        self.workers = rng.choice([1, 2, 3, 4, 8, 16])
        self.receipts: dict[Item, Receipt] = {}
        self.inside: list[Item] = []
        self.settled: list[tuple[Item, Outcome]] = []
        self.counts: dict[Any, int] = defaultdict(int)
        self.buried: list[Item] = []
        self.policy = rng.choice(["skip", "skip", "pause", "park", "fail"])
        self.stopped: set[Any] = set()
        """Lanes with a permanently failed item that have not been released since."""
        self.spilled: set[Item] = set()
        self.last: dict[Any, int] = {}
        self.at_rest: int | None = None
        """The number of held items when nothing else was inside; `None` if that state was not
        awaited.
        """
        self.broken: list[str] = []

    def some_lanes(self) -> list[Any]:
        """Keys, or the same keys within each tenant."""
        keys = range(self.rng.randint(1, 8))
        return (
            [Lane(tenant, key) for tenant in "abc"[: self.tenants] for key in keys]
            if self.tenants
            else [*keys]
        )

    def stack(self) -> Any:
        parts: list[Any] = []
        if self.rng.random() < 0.5:
            parts.append(Timeout(2.0))
        if self.rng.random() < 0.8:
            parts.append(
                Retry(
                    attempts=self.rng.randint(1, 4),
                    backoff=Backoff(base=0.5, longest=4.0, rng=self.rng),
                )
            )
        if self.policy == "park" or self.rng.random() < 0.6:
            parts.append(DeadLetter(self.bury))
        return stack(self.sink, *parts)

    async def bury(self, batch: Batch[Any]) -> None:
        await asyncio.sleep(self.rng.choice([0.0, 0.1]))
        self.buried += [record.item for record in batch]
        self.spilled.update(record.item for record in batch if record.parked_behind)

    def options(self) -> dict[str, Any]:
        rng = self.rng
        max_items = rng.randint(1, 6)
        sized = rng.random() < 0.3
        self.caps = Tenants(
            weights=rng.choice([{}, {"a": 3.0, "b": 0.5}]),
            max_pending_items=rng.choice([None, rng.randint(1, 30)]),
            max_pending_bytes=rng.randint(3, 60) if sized else None,
        )
        return {
            "limits": Limits(
                max_items=max_items,
                max_delay=rng.choice([0.05, 1.0]),
                workers=self.workers,
                max_pending_items=(self.workers + 1) * max_items + rng.randint(0, 20),
                max_bytes=rng.randint(3, 12) if sized else None,
                flush_timeout=10.0,
            ),
            "size_of": (lambda item: 1 + item.number % 3) if sized else None,
            "tenant": tenant_of if self.tenants else None,
            "tenants": self.caps if self.tenants else None,
            "on_key_failure": self.policy,
            "max_parked_items": rng.randint(1, 5) if self.policy == "park" else None,
            "overflow": rng.choice(
                ["block", "block", "block", "reject", "drop_newest", "drop_oldest"]
            ),
            "shutdown_deadline": rng.choice([0.0, 0.3, 5.0, 60.0, 10_000.0]),
        }

    async def produce(self, batcher: Batcher[Item], lane: Any) -> None:
        """One producer per lane, so that its items are accepted in the order of their numbers."""
        rng = self.rng
        for _ in range(rng.randint(0, 25)):
            item = Item(lane, self.counts[lane])
            self.counts[lane] += 1
            try:
                receipt = await asyncio.wait_for(
                    self._submit(batcher, item, rng.choice([None, None, 0.5])),
                    rng.choice([1e6, 1e6, 0.2]),
                )
            except (AddTimeout, TimeoutError):
                continue
            except KeyFailedError:
                await asyncio.sleep(0.1)
                continue
            except ClosedError:
                return
            self.receipts[item] = receipt
            self.inside.append(item)
            self.check_caps(batcher)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0.0, 0.01, 0.5]))

    async def _submit(self, batcher: Batcher[Item], item: Item, timeout: float | None) -> Receipt:
        try:
            return await batcher.submit(item, timeout=timeout)
        except KeyFailedError as error:
            if (error.tenant, error.key) != (
                tenant_of(item),
                key_of(item),
            ) or item.key not in self.stopped:
                self.broken.append(f"{item} was refused: {error}")
            raise

    async def disturb(self, batcher: Batcher[Item]) -> None:
        rng = self.rng
        for _ in range(rng.randint(0, 4)):
            await asyncio.sleep(rng.random() * 3)
            await batcher.flush(timeout=rng.choice([0.0, 0.5]))
            batcher.tally().verify()
            assert batcher.stats().held_keys == len(self.stopped)
            for lane in sorted(self.stopped):
                if rng.random() < 0.5:
                    self.let_go(batcher, lane)

    def let_go(self, batcher: Batcher[Item], lane: Any) -> None:
        self.stopped.discard(lane)
        let_go = batcher.unpark if self.policy == "park" else batcher.resume
        if self.tenants:
            let_go(lane.key, tenant=lane.tenant)
        else:
            let_go(lane)

    def check_caps(self, batcher: Batcher[Item]) -> None:
        """I10: no tenant exceeds its limit, and their sum does not either."""
        self.inside = [item for item in self.inside if not self.receipts[item].done]
        most = (self.tenants and self.caps.max_pending_items) or batcher.limits.ledger_items
        each = Counter(map(tenant_of, self.inside))
        if max(each.values(), default=0) > most or each.total() > batcher.limits.ledger_items:
            self.broken.append(f"{each} are inside")

    def on_outcome(self, batch: Batch[Item], outcome: Outcome, indices: Sequence[int]) -> None:
        """Items are settled in order, and after a failure only dead letters continue."""
        if outcome in {Outcome.UNSENT, Outcome.UNKNOWN}:
            return
        for lane, number in [batch[index] for index in indices]:
            if number <= self.last.get(lane, -1):
                self.broken.append(f"{lane}: {number} is settled after {self.last[lane]}")
            self.last[lane] = number
            if outcome in {Outcome.DEAD_LETTERED, Outcome.REJECTED}:
                if self.policy != "skip" and Item(lane, number) not in self.spilled:
                    self.stopped.add(lane)
            elif lane in self.stopped:
                self.broken.append(f"{lane}: {number} ended {outcome.value} behind one that failed")

    async def main(self, clock: FakeClock) -> None:
        rng = self.rng
        self.batcher = batcher = Batcher(
            self.stack(), key=key_of, clock=clock, observers=[self], **self.options()
        )
        async with batcher:
            tasks = [asyncio.create_task(self.produce(batcher, lane)) for lane in self.lanes]
            tasks.append(asyncio.create_task(self.disturb(batcher)))
            done, _ = await asyncio.wait(tasks, timeout=rng.choice([0.5, 5.0, 1e5]))
            for task in done:
                task.result()
            if len(done) == len(tasks) and rng.random() < 0.5:
                await self.come_to_rest(batcher)
            self.report = await batcher.shutdown(admit_waiting=rng.random() < 0.3)
            if self.at_rest is not None and self.report.parked != self.at_rest:
                self.broken.append(
                    f"{self.at_rest} were held, and {self.report.parked} are reported"
                )
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await clock.advance(100.0)

    async def come_to_rest(self, batcher: Batcher[Item]) -> None:
        """Check that all items pending at the end are held, and that every tenant with pending
        items is known.
        """
        await batcher.flush(timeout=10_000.0)
        await asyncio.sleep(100.0)  # writes that were cut off end, and overfull lanes have spilled
        report = await batcher.flush(timeout=0.0)
        stats = batcher.stats()
        if not report.remaining == stats.held_items == stats.tally.inside:
            self.broken.append(
                f"{report.remaining} remain, {stats.held_items} are held, {stats.tally.inside} "
                "are inside"
            )
        if stats.held_keys != len(self.stopped):
            self.broken.append(f"{stats.held_keys} keys are held instead of {self.stopped}")
        held = Counter(item.key for item, receipt in self.receipts.items() if not receipt.done)
        if not set(held) <= self.stopped:
            self.broken.append(f"{set(held) - self.stopped} are held, and have not failed")
        if self.tenants:
            shares = {
                share.tenant: share.ledger.inside
                for share in batcher._dispatcher.gathering.gatherer.queues()  # type: ignore[attr-defined]
            }
            known = {
                lane.tenant: sum(held[each] for each in held if each.tenant == lane.tenant)
                for lane in self.stopped
            }
            if shares != known:
                self.broken.append(f"{shares} are inside of each tenant instead of {known}")
        self.at_rest = stats.held_items

    def check(self) -> None:
        assert not self.sink.broken, self.sink.broken
        assert not self.broken, self.broken
        self.report.verify()
        assert all(receipt.done for receipt in self.receipts.values())
        for lane in self.lanes:
            applied = self.sink.applied.get(lane, [])
            sure = [number for number in applied if Item(lane, number) not in self.chaos.doubtful]
            assert len(set(sure)) == len(sure), f"{lane}: applied twice without a doubt: {applied}"
            first: list[int] = []
            for number in applied:
                if number not in first:
                    first.append(number)
            assert [n for n in first if n in sure] == sorted(sure), (
                f"{lane}: applied out of order: {applied}"
            )
            buried = [item.number for item in self.buried if item.key == lane]
            assert buried == sorted(buried), f"{lane}: dead letters out of order: {buried}"
            self._check_ends(lane)

    def _check_ends(self, lane: Any) -> None:
        """Once an item is returned, so are all later ones that were not dropped."""
        ends = {
            item.number: receipt.outcome
            for item, receipt in self.receipts.items()
            if item.key == lane
        }
        unsent = [number for number, outcome in ends.items() if outcome is Outcome.UNSENT]
        if unsent:
            after = {ends[number] for number in ends if number > min(unsent)}
            assert after <= {Outcome.UNSENT, Outcome.DROPPED}, f"{lane}: {ends}"
        back = [item.number for item in self.report.unsent if item.key == lane]
        assert back == sorted(back), f"{lane}: handed back out of order: {back}"


def run(seed: int) -> None:
    case = Run(seed)
    with FakeClock() as clock:
        clock.run(case.main(clock))
    case.check()


AGAIN = (
    'import sys; sys.path.insert(0, "tests/batcher"); import test_keyed_order; '
    "test_keyed_order.run({})"
)


def run_all(seeds: range) -> None:
    for seed in seeds:
        with run_by(AGAIN.format(seed)):
            run(seed)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(100, logger="sluicegate")


def test_no_seed_breaks_the_order_of_a_key() -> None:
    """batcher/4a.10, I4, I5, I10, B-T14, B-T28, G-T8: failures, retries, partial answers, outages,
    cuts, cancellations and shutdowns; with and without tenants and their limits.
    """
    run_all(range(SOME))


@pytest.mark.long
def test_no_further_seed_breaks_the_order_of_a_key() -> None:
    """batcher/4a.10, I4, I5, I10."""
    run_all(range(SOME, MORE))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_seed_of_many_breaks_the_order_of_a_key() -> None:
    """batcher/4a.10, I4, I5."""
    run_all(range(1_000_000, 1_000_000 + MANY))
