"""Random tests of a batcher, one rule at a time, on virtual time.

White box: the inside of the batcher, and how often it yields.

A rule starts something and lets the loop run until nothing is ready, or only for a few rounds, so
that the next rule acts in the middle: then both run in one run of the loop. The law must hold after
every rule and every round; when nothing is ready, nothing that could continue may be stalled.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.machine.destination import Act, Destination
from tests.machine.model import Model, Producer, Watch
from tests.machine.setting import MOST_ITEMS, STACKS, Setting, acts, rests, settings, waits

from sluicegate import Batcher, ItemFailed, Outcome, stack
from sluicegate._core.delivery.delivery import GRACE
from sluicegate.batcher import ShutdownReport
from sluicegate.batcher.gathering import window
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Batch, Observer, Sink
    from sluicegate.batcher import Tally
    from sluicegate.batcher.report import Stats

LONG = 400.0
"""Longer than any scripted write."""


class BatcherMachine(RuleBasedStateMachine):
    """The rules are actions of producers, the destination, the clock, and callers of the
    shutdown.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(max_rounds=20_000)
        self.acts: list[tuple[Callable[[], object], int]] = []
        """The actions at the beginning of the next run, and the rounds for which it then runs
        alone.
        """
        self.failed = False
        self.complaints: list[str] = []
        self.flushes: list[asyncio.Task[None]] = []
        self.listeners: list[asyncio.Task[None]] = []
        self.shutdowns: list[asyncio.Task[ShutdownReport[int]]] = []
        self.last_resort = LastResort("none")
        self.deadline: float | None = None
        self.stopping_since: float | None = None

    @initialize(setting=settings)
    def open(self, setting: Setting) -> None:
        destination = Destination(
            default=setting.default, workers=setting.workers, max_items=setting.max_items
        )
        model = Model(setting.limits(), measure)
        self.begin(
            setting, destination, model, stack(destination, *STACKS[setting.stack]()), Watch(model)
        )

    def begin(
        self,
        setting: Setting,
        destination: Destination,
        model: Model,
        sink: Sink[int],
        watch: Observer,
        **more: Any,
    ) -> None:
        """Open a batcher; `more` are arguments of some batchers only."""
        self.setting = setting
        self.destination = destination
        self.model = model
        destination.is_settled = model.outcomes.__contains__
        self.last_resort = LastResort(setting.last_resort)
        self.batcher = model.batcher = Batcher(
            sink,
            limits=setting.limits(),
            overflow=setting.overflow,
            size_of=measure if setting.sized else None,
            on_failure="crash" if setting.crash else "log",
            last_resort=None if setting.last_resort == "none" else self.last_resort,
            observers=[watch],
            clock=self.clock,
            **more,
        )
        # A producer that yields before it requests capacity has no place in line yet, and the laws
        # cannot detect that it does not wait.
        self.yield_every, window.YIELD_EVERY = window.YIELD_EVERY, sys.maxsize
        self.clock.loop.set_exception_handler(
            lambda loop, context: self.complaints.append(str(context))
        )
        self.clock.run(self._open())

    async def _open(self) -> None:
        await self.batcher.__aenter__()

    def step(self, act: Callable[[], object], rest: int | None = None) -> None:
        """Act inside the loop, then run it until nothing is ready, or for some rounds until the
        next rule.
        """
        self.acts.append((act, rest or 0))
        if rest is None:
            self.run_for(0.0)

    def run_for(self, seconds: float) -> None:
        """Run the pending actions, and advance by this time."""
        acts, self.acts = self.acts, []
        self.clock.run(self._act(acts, seconds))

    async def _act(self, acts: list[tuple[Callable[[], object], int]], seconds: float) -> None:
        for act, rounds in acts:
            act()
            for _ in range(rounds):
                self.model.check_law()
                await asyncio.sleep(0)
            self.model.check_law()
        await self.clock.advance(seconds)

    # -- producers ---------------------------------------------------------------------------------

    async def put(self, items: tuple[int, ...], timeout: float | None) -> None:
        """Offer items without waiting for their outcomes."""
        if len(items) == 1:
            await self.batcher.add(items[0], timeout=timeout)
        else:
            await self.batcher.add_many(items, timeout=timeout)

    @property
    def room_for_more(self) -> bool:
        return self.model.offered < MOST_ITEMS

    @property
    def may_try(self) -> bool:
        return True

    @precondition(lambda self: self.room_for_more)
    @rule(count=st.sampled_from([1, 1, 2, 3]), timeout=waits, rest=rests)
    def add(self, count: int, timeout: float | None, rest: int | None) -> None:
        async def call(producer: Producer) -> None:
            await self.put(producer.items, timeout)

        self.step(lambda: [self.model.produce(1, call) for _ in range(count)], rest)

    @precondition(lambda self: self.room_for_more)
    @rule(more=st.integers(0, 3), rest=rests)
    def crowd(self, more: int, rest: int | None) -> None:
        """Enough producers to fill the ledger, and a few more."""

        async def call(producer: Producer) -> None:
            await self.put(producer.items, None)

        count = self.batcher.limits.ledger_items - len(self.model.inside()) + more
        self.step(lambda: [self.model.produce(1, call) for _ in range(count)], rest)

    @precondition(lambda self: self.room_for_more)
    @rule(count=st.integers(1, 5), timeout=waits, rest=rests)
    def add_many(self, count: int, timeout: float | None, rest: int | None) -> None:
        async def call(producer: Producer) -> None:
            await self.put(producer.items, timeout)

        self.step(lambda: self.model.produce(count, call), rest)

    @precondition(lambda self: self.room_for_more)
    @rule(count=st.sampled_from([1, 1, 2, 3]), timeout=waits, rest=rests)
    def submit(self, count: int, timeout: float | None, rest: int | None) -> None:
        async def call(producer: Producer) -> None:
            (item,) = producer.items
            self.model.receipts[item] = await self.batcher.submit(item, timeout=timeout)

        self.step(lambda: [self.model.produce(1, call) for _ in range(count)], rest)

    @precondition(lambda self: self.room_for_more and self.may_try)
    @rule(rest=rests)
    def try_add(self, rest: int | None) -> None:
        def call() -> None:
            items = self.model.numbers(1)
            taken = self.batcher.try_add(items[0])
            if taken or items[0] in self.model.outcomes:
                self.model.accept(items)
            else:
                self.model.refused += 1

        self.step(call, rest)

    @precondition(lambda self: self.model.waiting())
    @rule(data=st.data(), rest=rests)
    def cancel_a_producer(self, data: st.DataObject, rest: int | None) -> None:
        waiting = self.model.waiting()
        task = waiting[data.draw(st.integers(0, len(waiting) - 1))].task
        assert task is not None
        self.step(task.cancel, rest)

    @precondition(lambda self: self.model.waiting() and self.destination.gated)
    @rule(place=st.integers(0, 1), rounds=st.integers(0, 4))
    def cancel_a_producer_as_room_comes_free(self, place: int, rounds: int) -> None:
        """The grant of capacity and the cancellation race, by rounds of the loop."""
        task = self.model.waiting()[place:][:1]
        self.step(self.destination.open_gate, rounds)
        self.step(
            lambda: [producer.task.cancel() for producer in task if producer.task is not None]
        )

    @precondition(lambda self: self.model.receipts)
    @rule(data=st.data())
    def await_a_receipt(self, data: st.DataObject) -> None:
        receipt = self.model.receipts[data.draw(st.sampled_from(sorted(self.model.receipts)))]

        async def listen() -> None:
            try:
                outcome = await receipt
            except ItemFailed as failed:
                outcome = failed.outcome
            assert outcome is receipt.outcome

        self.step(lambda: self.listeners.append(asyncio.create_task(listen())), None)

    @precondition(lambda self: any(not task.done() for task in self.listeners))
    @rule(rest=rests)
    def cancel_a_listener(self, rest: int | None) -> None:
        self.step(next(task for task in self.listeners if not task.done()).cancel, rest)

    # -- the destination and the time --------------------------------------------------------------

    @precondition(lambda self: len(self.destination.script) < 8)
    @rule(next_acts=st.lists(acts, min_size=1, max_size=4))
    def script(self, next_acts: list[Act]) -> None:
        self.destination.script.extend(next_acts)

    @precondition(lambda self: self.destination.gated)
    @rule(rest=rests)
    def answer(self, rest: int | None) -> None:
        self.step(self.destination.open_gate, rest)

    @rule(by=st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0, 20.0]))
    def advance(self, by: float) -> None:
        self.run_for(by)

    @rule()
    def settle_down(self) -> None:
        self.run_for(0.0)

    # -- flushes and shutdowns ---------------------------------------------------------------------

    @precondition(lambda self: len(self.flushes) < 10)
    @rule(timeout=waits, rest=rests)
    def flush(self, timeout: float | None, rest: int | None) -> None:
        self.step(lambda: self.flushes.append(asyncio.create_task(self.model.flush(timeout))), rest)

    @precondition(lambda self: any(not task.done() for task in self.flushes))
    @rule(rest=rests)
    def cancel_a_flush(self, rest: int | None) -> None:
        self.step(next(task for task in self.flushes if not task.done()).cancel, rest)

    @precondition(
        lambda self: len(self.model.accepted) >= self.setting.patience and len(self.shutdowns) < 4
    )
    @rule(deadline=st.sampled_from([0.0, 0.5, 3.0, 25.0]), admit_waiting=st.booleans(), rest=rests)
    def shutdown(self, deadline: float, admit_waiting: bool, rest: int | None) -> None:
        self.step(
            lambda: self.shutdowns.append(
                asyncio.create_task(self._shut_down(deadline, admit_waiting=admit_waiting))
            ),
            rest,
        )

    @precondition(lambda self: any(not task.done() for task in self.shutdowns))
    @rule(rest=rests)
    def cancel_a_shutdown(self, rest: int | None) -> None:
        """Cancel a shutdown: it ends now."""
        task = next(task for task in self.shutdowns if not task.done())

        def cancel() -> None:
            if task.cancel() and self.deadline is not None:
                self.deadline = min(self.deadline, self.clock.now())

        self.step(cancel, rest)

    async def _shut_down(self, deadline: float, *, admit_waiting: bool) -> ShutdownReport[int]:
        when = self.clock.now() + deadline
        if self.stopping_since is None:
            self.stopping_since = self.clock.now()
        self.deadline = when if self.deadline is None else min(when, self.deadline)
        return await self.batcher.shutdown(deadline, admit_waiting=admit_waiting)

    # -- the laws ----------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if self.acts or not hasattr(self, "model"):
            return
        try:
            self._check()
        except BaseException:
            self.failed = True
            raise

    def _check(self) -> None:
        model = self.model
        assert not self.complaints, self.complaints
        assert not self.destination.broken, self.destination.broken
        for producer in model.producers:
            if producer.task is not None and producer.task.done():
                producer.task.result()
        model.check_counts()
        assert not model.broken, model.broken
        model.check_receipts()
        self.check_order()
        model.check_queue()
        self._check_nothing_stands_still()

    def check_order(self) -> None:
        """Check that batches hold items in the order of acceptance; one worker also writes them in
        that order.
        """
        place = self.model.place
        sent: list[int] = []
        for write in self.destination.writes:
            places = [place[item] for item in write.items]
            assert places == sorted(places), f"a batch out of order: {write.items}"
            sent += [at for at in places if at not in sent]
        assert self.setting.workers > 1 or sent == sorted(sent), f"one worker out of order: {sent}"

    def is_worker_free(self, stats: Stats) -> bool:
        """Whether a worker could write: a single worker keeps its slot while it backs off."""
        free = stats.in_flight_batches < self.setting.workers and self.setting.workers > 1
        return free or stats.in_flight_batches + stats.backing_off_batches == 0

    def check_idle_worker(self, stats: Stats) -> None:
        """With a free worker, no item that could be sent waits."""
        assert stats.sealed_batches == 0, f"a worker is free, and a sealed batch waits: {stats}"
        assert not (stats.open_items and stats.waiting_producers), (
            f"a worker is free, and a producer waits: {stats}"
        )
        assert stats.oldest_age is None or stats.oldest_age < self.setting.max_delay, (
            f"a worker is free, and a batch is due: {stats}"
        )

    def _check_tries_go_on(self, stats: Stats) -> None:
        """Check that flights in backoff have been tried again since the shutdown began, and have
        time for another attempt.
        """
        assert self.stopping_since is not None
        tried = any(write.started >= self.stopping_since for write in self.destination.writes)
        assert tried, f"a shutdown waits for a backoff: {stats}"

    def check_open_batch(self, stats: Stats) -> None:
        assert stats.open_items < self.setting.max_items, f"a full batch is open: {stats}"

    def _check_nothing_stands_still(self) -> None:
        stats, limits = self.batcher.stats(), self.batcher.limits
        worker_free = self.is_worker_free(stats)
        if worker_free and stats.state in {"open", "closing"}:
            self.check_idle_worker(stats)
        self.check_open_batch(stats)
        long_ago = self.clock.now() - limits.stretch - 1e-6
        hanging = [write for write in self.destination.writes if write.hangs_since(long_ago)]
        assert not hanging, f"not cut off by the flush timeout: {hanging}"
        cut = [
            item
            for write in self.destination.writes
            if write.runs_since(long_ago - GRACE)
            for item in write.items
        ]
        open_ended = [item for item in cut if item not in self.model.outcomes]
        assert not open_ended, f"cut off, and without an outcome: {open_ended}"
        if self.deadline is not None:
            assert self.batcher.report is not None or self.clock.now() < self.deadline, (
                "the deadline has passed"
            )
        if stats.state == "closing":
            busy = (
                stats.tally.inside
                or stats.in_flight_batches
                or stats.backing_off_batches
                or stats.waiting_producers
            )
            assert busy or self.last_resort.running, f"the shutdown waits for nothing: {stats}"
            if worker_free and stats.backing_off_batches and not stats.throttled_seconds:
                self._check_tries_go_on(stats)
        if self.batcher.report is not None:
            assert all(task.done() for task in self.shutdowns)
            assert not self.model.waiting(), "a producer waits for a closed batcher"
            assert all(task.done() for task in self.flushes), "a flush waits for a closed batcher"
        if stats.state == "broken":
            assert all(task.done() for task in self.flushes), "a flush waits for a broken batcher"

    # -- the end -----------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if not self.failed and hasattr(self, "model"):
                self.end()
        finally:
            self.clock.close()
            if hasattr(self, "yield_every"):
                window.YIELD_EVERY = self.yield_every
            if hasattr(self, "batcher"):
                self.batcher._lifecycle.state = (
                    "closed"  # items left inside by a planted bug cause no warning
                )

    def end(self) -> None:
        self.run_for(0.0)
        if self.batcher.report is None:
            self.step(lambda: self.shutdowns.append(asyncio.create_task(self._last_shutdown())))
            assert self.deadline is not None
            self.run_for(max(0.0, self.deadline - self.clock.now()))
        self.holds()
        report = self.batcher.report
        assert report is not None
        report.verify()
        assert self._tally() == replace(report.tally, refused=0)
        assert report.seconds <= 25.0 + 1e-9
        if not report.left_behind and not self.last_resort.running:
            assert not self.clock.leftovers(), f"left behind: {self.clock.leftovers()}"
        ends = self.ends(report)
        self.run_for(LONG)
        assert self._tally() == replace(report.tally, refused=0), (
            "a late completion changed the tally"
        )
        assert self.batcher.report is report
        assert self.ends(report) == ends
        assert not self.clock.leftovers(), f"left behind for ever: {self.clock.leftovers()}"
        assert not self.batcher._lifecycle._stop_signal.waiters
        assert [*self.complaints, *self.destination.broken, *self.model.broken] == []
        for task in self.listeners:
            assert task.done()
            if not task.cancelled():
                task.result()
        self._check_truth(ends)

    def _tally(self) -> Tally:
        """The tally without the refusals, whose number is unbounded."""
        return replace(self.batcher.tally(), refused=0)

    async def _last_shutdown(self) -> ShutdownReport[int]:
        return await self._shut_down(
            self.setting.final_deadline, admit_waiting=self.setting.final_admit
        )

    def ends(self, report: ShutdownReport[int]) -> dict[int, Outcome]:
        """Every item's outcome, each from a single source."""
        ends = dict(self.model.outcomes)
        for item in report.unsent:
            assert ends.get(item, Outcome.UNSENT) is Outcome.UNSENT, (
                f"item {item} ended {ends[item]} and is handed back"
            )
            ends[item] = Outcome.UNSENT
        assert len(set(report.unsent)) == len(report.unsent) == report.tally.unsent
        for item in self.model.accepted:
            if item not in ends or (ends[item] is Outcome.UNSENT and item not in report.unsent):
                assert item in self.last_resort.taken, f"nobody knows how item {item} ended"
                ends[item] = Outcome.DEAD_LETTERED
        for item in report.unknown:
            assert ends[item] is Outcome.UNKNOWN
        for item, receipt in self.model.receipts.items():
            assert receipt.outcome is ends[item], (
                f"the receipt of item {item} says {receipt.outcome}, and it ended {ends[item]}"
            )
        assert len(ends) == len(self.model.accepted)
        return ends

    def _check_truth(self, ends: dict[int, Outcome]) -> None:
        applied = self.destination.applied
        for item, outcome in ends.items():
            if outcome in {Outcome.DELIVERED, Outcome.DUPLICATE}:
                assert item in applied, f"item {item} ended {outcome.value} and was never applied"
            elif outcome is Outcome.UNKNOWN:
                assert self.destination.may_differ(item), (
                    f"item {item} ended unknown, and everybody knew"
                )
            elif outcome is not Outcome.DEAD_LETTERED or not self.destination.may_differ(item):
                assert item not in applied, f"item {item} ended {outcome.value} and was applied"
            if applied.count(item) > 1:
                assert self.destination.may_differ(item), (
                    f"item {item} was applied twice, and there was no doubt"
                )


class LastResort:
    """Accepts the items that a shutdown could not send, in one of several ways."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.taken: list[int] = []
        self.running = 0

    async def write(self, batch: Batch[int]) -> Any:
        self.running += 1
        act = Act(self._kind) if self._kind != "deaf" else Act(seconds=60.0, deaf=True)
        if self._kind == "partial":
            act = Act("partial", which=frozenset({0}))
        way = Destination(default=act, workers=9, max_items=9)
        try:
            result = await way.write(batch)
            self.taken += way.applied
            return result
        finally:
            self.running -= 1


def measure(item: int) -> int:
    return 1 + item % 3
