"""Order per key under everything that can happen to a batch, over many seeds."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from keyed_help import Destination, Item, key_of

from penstock import (
    AddTimeout,
    Batcher,
    ClosedError,
    DeadLetter,
    KeyFailedError,
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
from penstock.retry import Backoff
from penstock.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock import Batch, Receipt

SOME = 120
MANY = 5_000


class Chaos:
    """A destination that does anything, one item at a time where it promises to be safe for prefixes."""

    def __init__(self, rng: random.Random, *, prefix_safe: bool) -> None:
        self._rng = rng
        self._prefix_safe = prefix_safe
        self._down_until = 0.0
        self.doubtful: set[Item] = set()

    async def __call__(self, sink: Destination, batch: Batch[Item]) -> WriteResult | None:
        rng = self._rng
        loop = asyncio.get_running_loop()
        kind = rng.choice(["ok", "ok", "ok", "partial", "partial", "whole", "down", "unknown", "hang", "deaf", "settle"])
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
    """One batcher, its producers, its destination and its end, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.prefix_safe = rng.random() < 0.5
        self.chaos = Chaos(rng, prefix_safe=self.prefix_safe)
        self.sink = Destination(self.chaos, prefix_safe=self.prefix_safe)
        self.keys = rng.randint(1, 8)
        self.workers = rng.choice([1, 2, 3, 4, 8, 16])
        self.receipts: dict[Item, Receipt] = {}
        self.settled: list[tuple[Item, Outcome]] = []
        self.counts: dict[Any, int] = defaultdict(int)
        self.buried: list[Item] = []
        self.policy = rng.choice(["skip", "skip", "pause", "park", "fail"])
        self.stopped: set[Any] = set()
        """Keys of which an item has failed for good, and that nobody has let go since."""
        self.spilled: set[Item] = set()
        self.last: dict[Any, int] = {}
        self.broken: list[str] = []

    def stack(self) -> Any:
        parts: list[Any] = []
        if self.rng.random() < 0.5:
            parts.append(Timeout(2.0))
        if self.rng.random() < 0.8:
            parts.append(Retry(attempts=self.rng.randint(1, 4), backoff=Backoff(base=0.5, longest=4.0, rng=self.rng)))
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
            "on_key_failure": self.policy,
            "max_parked_items": rng.randint(1, 5) if self.policy == "park" else None,
            "overflow": rng.choice(["block", "block", "block", "reject", "drop_newest", "drop_oldest"]),
            "shutdown_deadline": rng.choice([0.0, 0.3, 5.0, 60.0, 10_000.0]),
        }

    async def produce(self, batcher: Batcher[Item], key: Any) -> None:
        """One producer per key, so that its items are accepted in the order of their numbers."""
        rng = self.rng
        for _ in range(rng.randint(0, 25)):
            item = Item(key, self.counts[key])
            self.counts[key] += 1
            try:
                receipt = await asyncio.wait_for(batcher.submit(item, timeout=rng.choice([None, None, 0.5])), rng.choice([1e6, 1e6, 0.2]))
            except (AddTimeout, TimeoutError):
                continue
            except KeyFailedError:
                await asyncio.sleep(0.1)
                continue
            except ClosedError:
                return
            self.receipts[item] = receipt
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0.0, 0.01, 0.5]))

    async def disturb(self, batcher: Batcher[Item]) -> None:
        rng = self.rng
        for _ in range(rng.randint(0, 4)):
            await asyncio.sleep(rng.random() * 3)
            await batcher.flush(timeout=rng.choice([0.0, 0.5]))
            batcher.tally().verify()
            for key in sorted(self.stopped):
                if rng.random() < 0.5:
                    self.stopped.discard(key)
                    {"pause": batcher.resume, "fail": batcher.resume, "park": batcher.unpark}[self.policy](key)

    def on_outcome(self, batch: Batch[Item], outcome: Outcome, indices: Sequence[int]) -> None:
        """What is settled is settled in order, and after a failure only the dead letters go on."""
        if outcome in {Outcome.UNSENT, Outcome.UNKNOWN}:
            return
        for key, number in [batch[index] for index in indices]:
            if number <= self.last.get(key, -1):
                self.broken.append(f"{key}: {number} is settled after {self.last[key]}")
            self.last[key] = number
            if outcome in {Outcome.DEAD_LETTERED, Outcome.REJECTED}:
                if self.policy != "skip" and Item(key, number) not in self.spilled:
                    self.stopped.add(key)
            elif key in self.stopped:
                self.broken.append(f"{key}: {number} ended {outcome.value} behind one that failed")

    async def main(self, clock: FakeClock) -> None:
        rng = self.rng
        self.batcher = batcher = Batcher(self.stack(), key=key_of, clock=clock, observers=[self], **self.options())
        async with batcher:
            tasks = [asyncio.create_task(self.produce(batcher, key)) for key in range(self.keys)]
            tasks.append(asyncio.create_task(self.disturb(batcher)))
            done, _ = await asyncio.wait(tasks, timeout=rng.choice([0.5, 5.0, 1e5]))
            for task in done:
                task.result()
            self.report = await batcher.shutdown()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await clock.advance(100.0)

    def check(self) -> None:
        assert not self.sink.broken, self.sink.broken
        assert not self.broken, self.broken
        self.report.verify()
        assert all(receipt.done for receipt in self.receipts.values())
        for key in range(self.keys):
            applied = self.sink.applied.get(key, [])
            sure = [number for number in applied if Item(key, number) not in self.chaos.doubtful]
            assert len(set(sure)) == len(sure), f"{key}: applied twice without a doubt: {applied}"
            first: list[int] = []
            for number in applied:
                if number not in first:
                    first.append(number)
            assert [n for n in first if n in sure] == sorted(sure), f"{key}: applied out of order: {applied}"
            buried = [item.number for item in self.buried if item.key == key]
            assert buried == sorted(buried), f"{key}: dead letters out of order: {buried}"
            self._check_ends(key)

    def _check_ends(self, key: Any) -> None:
        """Once an item is handed back, so is everything after it that was not dropped."""
        ends = {item.number: receipt.outcome for item, receipt in self.receipts.items() if item.key == key}
        unsent = [number for number, outcome in ends.items() if outcome is Outcome.UNSENT]
        if unsent:
            after = {ends[number] for number in ends if number > min(unsent)}
            assert after <= {Outcome.UNSENT, Outcome.DROPPED}, f"{key}: {ends}"
        back = [item.number for item in self.report.unsent if item.key == key]
        assert back == sorted(back), f"{key}: handed back out of order: {back}"


def run(seed: int) -> None:
    case = Run(seed)
    with FakeClock() as clock:
        clock.run(case.main(clock))
    case.check()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(100, logger="penstock")


@pytest.mark.parametrize("block", range(4))
def test_no_seed_breaks_the_order_of_a_key(block: int) -> None:
    """batcher/4a.10, I4, I5, B-T14, G-T8: failures, retries, partial answers, outages, cuts, cancellations and shutdowns."""
    for seed in range(block * SOME // 4, (block + 1) * SOME // 4):
        try:
            run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_seed_of_many_breaks_the_order_of_a_key() -> None:
    """batcher/4a.10, I4, I5."""
    for seed in range(1_000_000, 1_000_000 + MANY):
        try:
            run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
