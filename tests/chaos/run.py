"""One seeded run: producers, flushes and cancellations on a stack with a faulty destination, and
one of two endings.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from tests.chaos.lanes import Lanes
from tests.chaos.shapes import Shape
from tests.chaos.storm import KEYS, Row

from sluicegate import AddTimeout, Batch, Batcher, ClosedError, Limits, Observer, Outcome, Receipt
from sluicegate.batcher import ShutdownReport
from sluicegate.errors import KeyFailedError
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

LATER = 2_000.0
"""Seconds after which nothing of a run remains."""


class Chaos(Observer):
    """One run. With `patient` it continues until every item has its outcome; otherwise it is shut
    down in the middle.
    """

    def __init__(self, seed: int, *, patient: bool, lanes: bool = False) -> None:
        self.lanes = Lanes(seed, patient) if lanes else None
        rng = self.rng = random.Random(seed)
        self.patient = patient
        self.calm_at = rng.choice([5.0, 40.0])
        bad = frozenset(key for key in range(KEYS) if rng.random() < rng.choice([0.0, 0.1, 0.3]))
        self.shape = Shape(rng, self.calm_at, bad, deaf=not patient, lanes=self.lanes)
        self.bad = bad
        self.numbers = 0
        self.accepted: list[int] = []
        self.place: dict[int, int] = {}
        self.receipts: dict[int, Receipt] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.broken: list[str] = []
        self.handed_back: list[int] = []
        self.last_resort: list[int] = []
        self.clock = FakeClock(max_rounds=200_000)

    # -- watching ----------------------------------------------------------------------------------

    def on_outcome(self, batch: Batch[Row], outcome: Outcome, indices: Sequence[int]) -> None:
        for index in indices:
            (item,) = batch[index]
            if item in self.outcomes:
                self.broken.append(f"item {item} ended {self.outcomes[item]} and then {outcome}")
            self.outcomes[item] = outcome
            self.shape.settled.add(item)
        if self.lanes is not None:
            self.lanes.settled([batch[index][0] for index in sorted(indices)], outcome, self.place)
        self._check_law()

    def on_sealed(self, batch: Batch[Row]) -> None:
        if self.lanes is not None:
            self.lanes.sealed(batch)
        self._check_law()

    def _check_law(self) -> None:
        try:
            self.batcher.tally().verify()
        except AssertionError as error:
            self.broken.append(str(error))
        if self.lanes is not None:
            self.lanes.check(self.batcher)

    # -- producing ---------------------------------------------------------------------------------

    def _rows(self, count: int) -> list[Row]:
        self.numbers += count
        return [(number,) for number in range(self.numbers - count, self.numbers)]

    async def _produce(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(1, 12)):
            fails = self.lanes is not None and self.lanes.policy == "fail"
            rows = self._rows(rng.choice([1, 1, 1, 2, 5]) if not fails else 1)
            timeout = rng.choice([None, None, 0.5])
            try:
                if len(rows) > 1:
                    await self.batcher.add_many(rows, timeout=timeout)
                elif rng.random() < 0.5 or fails:
                    self.receipts[rows[0][0]] = await self.batcher.submit(rows[0], timeout=timeout)
                else:
                    await self.batcher.add(rows[0], timeout=timeout)
            except (AddTimeout, KeyFailedError):
                continue
            except ClosedError:
                return
            for (number,) in rows:
                self.place[number] = len(self.accepted)
                self.accepted.append(number)
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.1, 2.0]))

    async def _disturb(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Start flushes without a waiter, and cancel producers."""
        rng = self.rng
        for _ in range(rng.randint(0, 6)):
            await asyncio.sleep(rng.uniform(0.0, 5.0))
            if rng.random() < 0.5:
                tasks.append(asyncio.create_task(self._flush()))
            else:
                rng.choice(tasks).cancel()

    async def _flush(self) -> None:
        try:
            await self.batcher.flush(timeout=self.rng.choice([None, 1.0]))
        except ClosedError:
            pass

    # -- the run -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run it, with every check."""
        with self.clock:
            self.clock.run(self._run())
            assert self.clock.leftovers() == []

    async def _run(self) -> None:
        rng = self.rng
        workers, max_items = rng.randint(1, 4), rng.choice([1, 3, 8])
        workers = workers if self.lanes is None else self.lanes.workers
        options: dict[str, Any] = {} if self.lanes is None else self.lanes.options
        limits = Limits(
            max_items=max_items,
            workers=workers,
            max_pending_items=(workers + 1) * max_items + 4,
            max_delay=rng.choice([0.05, 1.0]),
            flush_timeout=1e6 if self.patient else 30.0,
        )
        last_resort = None if self.patient or rng.random() < 0.5 else self._take_in
        options |= {"limits": limits, "observers": [self], "last_resort": last_resort}
        async with Batcher(self.shape.sink, shutdown_deadline=25.0, **options) as batcher:
            self.batcher = batcher
            tasks: list[asyncio.Task[Any]] = [
                asyncio.create_task(self._produce()) for _ in range(rng.randint(1, 4))
            ]
            disturbing = asyncio.create_task(self._disturb(tasks))
            if self.patient:
                await disturbing
                await asyncio.wait(tasks)
                assert (await batcher.flush()).complete
                report = await batcher.shutdown()
            else:
                report = await self._shut_down_in_the_middle(batcher)
                await disturbing
                await asyncio.wait(tasks)
        report.verify()
        before = batcher.tally()
        self._check(report)
        await asyncio.sleep(LATER)
        assert batcher.tally() == before, "a late completion changed the tally"
        if self.lanes is not None:
            self.lanes.check_left(batcher)

    async def _take_in(self, batch: Batch[Row]) -> None:
        await asyncio.sleep(self.rng.choice([0.0, 1.0, 30.0]))
        self.last_resort += [item for row in batch for item in row]

    async def _shut_down_in_the_middle(self, batcher: Batcher[Row]) -> ShutdownReport[Row]:
        rng = self.rng
        await asyncio.sleep(rng.uniform(0.0, self.calm_at))
        deadline = rng.choice([0.0, 0.3, 4.0, 25.0])
        until = self.clock.now() + deadline
        first = asyncio.create_task(batcher.shutdown(deadline, admit_waiting=rng.random() < 0.5))
        await asyncio.sleep(rng.choice([0.0, 0.2, 3.0]))
        if rng.random() < 0.3:
            first.cancel()  # the deadline moves to now
            until = self.clock.now()
        was_done = first.done()
        report = await batcher.shutdown()
        assert was_done or self.clock.now() <= until + 1e-9
        assert report.seconds <= deadline + 1e-9
        await asyncio.wait([first])
        return report

    # -- the laws ----------------------------------------------------------------------------------

    def _check(self, report: ShutdownReport[Row]) -> None:
        assert self.broken == []
        assert self.lanes is None or self.lanes.broken == []
        assert report.tally.accepted == len(self.accepted)
        ends = self._ends(report)
        for item, receipt in self.receipts.items():
            assert receipt.outcome is ends[item]
        for storm in self.shape.required:
            assert not storm.sent_again, f"settled, and sent again: {storm.sent_again}"
            assert storm.most_running <= self.batcher.limits.workers
            assert not storm.beside, f"in two writes at once: {storm.beside}"
        for item, outcome in ends.items():
            self._check_truth(item, outcome)
        if self.patient:
            self._check_everything_arrived(ends)

    def _ends(self, report: ShutdownReport[Row]) -> dict[int, Outcome]:
        ends: dict[int, Outcome] = {
            item: outcome
            for item, outcome in self.outcomes.items()
            if outcome is not Outcome.UNSENT
        }
        behind = [
            item for item, receipt in self.receipts.items() if receipt.outcome is Outcome.REJECTED
        ]
        ends.update(
            dict.fromkeys(behind, Outcome.REJECTED)
        )  # items that fail behind their key: only their receipts report it
        unsent = [item for (item,) in report.unsent]
        assert not set(unsent) & set(ends)
        assert len(unsent) == len(set(unsent))
        ends.update(dict.fromkeys(unsent, Outcome.UNSENT))
        held = set(self.accepted) - set(ends)
        assert held <= set(self.last_resort), (
            f"nobody knows how these ended: {held - set(self.last_resort)}"
        )
        ends.update(dict.fromkeys(held, Outcome.DEAD_LETTERED))
        assert ends.keys() == set(self.accepted)
        return ends

    def _is_bad(self, item: int) -> bool:
        return item % KEYS in self.bad

    def _check_truth(self, item: int, outcome: Outcome) -> None:
        shape = self.shape
        wanted = shape.wanted_by(item)
        there = [item in storm.applied for storm in wanted]
        doubtful = any(item in storm.doubtful for storm in wanted)
        about = (
            f"item {item} ({'bad' if self._is_bad(item) else 'good'}) in {shape.name} "
            f"ended {outcome.value}"
        )
        if outcome in {Outcome.DELIVERED, Outcome.DUPLICATE}:
            assert all(there), f"{about}: {there}"
        elif outcome is Outcome.UNSENT:
            assert not any(there), f"{about}: {there}"
        elif outcome is Outcome.REJECTED:
            assert self._is_bad(item), about
        elif outcome is Outcome.DEAD_LETTERED and item not in self.last_resort:
            assert self._is_bad(item), about
            assert item in shape.letters.applied, about
        elif outcome is Outcome.UNKNOWN:
            assert doubtful or any(there) or item in shape.letters.doubtful, about

    def _check_everything_arrived(self, ends: dict[int, Outcome]) -> None:
        """Check the result after the faults and enough time: good items are stored, bad ones are
        dead letters, and nothing else exists.

        A bad item with a cut attempt may have been applied as far as the client knows: it is
        unknown and not a dead letter.
        """
        good = {item for item in ends if not self._is_bad(item)}
        assert {item for item, outcome in ends.items() if outcome is Outcome.DELIVERED} == good, (
            f"{self.shape.name}: {ends}"
        )
        dead = {item for item, outcome in ends.items() if outcome is Outcome.DEAD_LETTERED}
        doubtful = {item for storm in self.shape.required for item in storm.doubtful}
        unknown = ends.keys() - good - dead
        assert unknown <= doubtful, f"{self.shape.name}: {unknown - doubtful}"
        assert all(ends[item] is Outcome.UNKNOWN for item in unknown)
        assert set(self.shape.letters.applied) == dead
        for item in good:
            assert all(item in storm.applied for storm in self.shape.wanted_by(item))
