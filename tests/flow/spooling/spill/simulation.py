"""Seeded days of a batcher that spills: outages, slowness, refused items, restarts, on virtual time.

The destination's own record is the truth. An interrupted write applies nothing, so no item may be
applied twice.

White box: the thread of a spool is replaced by one on virtual time, so that a seed is always the same
run.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

import pytest
from spooling.files.store_help import opened

from sluicegate import (
    Backoff,
    Batcher,
    Capabilities,
    CircuitBreaker,
    ClosedError,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    Timeout,
    TransientError,
    UnavailableError,
    WriteResult,
    stack,
)
from sluicegate._core.order.left_out import stopped_behind
from sluicegate.errors import LedgerFull
from sluicegate.flow import Spool
from sluicegate.flow.spooling import running
from sluicegate.flow.spooling.parked import ParkedFile
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate import Batch, Receipt

STACKS = ("plain", "breaker", "timeout", "retry", "both")
WEAK = ("plain", "breaker")
"""Stacks in which an item has few tries: an outage may park it."""
WEATHER = {"up": 4, "down": 3, "slow": 2, "hanging": 1, "shaky": 1}
SUCCESS = {Outcome.DELIVERED, Outcome.SPOOLED}


class Destination:
    """Applies items in order, as the weather allows; an item that is `bad` is refused."""

    def __init__(self, rng: random.Random, *, prefix_safe: bool, hangs: float) -> None:
        self.capabilities = Capabilities(key_prefix_safe=prefix_safe)
        self.weather = "up"
        self.applied: list[dict[str, Any]] = []
        self.running = self.most_running = self.cut = 0
        self._rng = rng
        self._hangs = hangs

    async def write(self, batch: Batch[dict[str, Any]]) -> WriteResult | None:
        """Apply a batch at the end of its time."""
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self._seconds())
        except asyncio.CancelledError:
            self.cut += 1
            raise
        finally:
            self.running -= 1
        if self.weather == "down":
            raise UnavailableError("down")
        if self.weather == "shaky" and self._rng.random() < 0.5:
            raise TransientError("shaky")
        bad = {at: PermanentError("bad") for at, item in enumerate(batch) if item["bad"]}
        errors: dict[int, BaseException] = {**bad, **stopped_behind(batch.keys, bad)}
        self.applied += [item for at, item in enumerate(batch) if at not in errors]
        return WriteResult.failed(batch, errors) if errors else None

    def _seconds(self) -> float:
        if self.weather == "hanging":
            return self._hangs
        return self._rng.uniform(0.0, {"slow": 3.0, "down": 0.01}.get(self.weather, 0.05))


class Disk(Executor):
    """Runs the calls of a thread one after another, each at the end of a virtual time."""

    def __init__(self, rng: random.Random, clock: FakeClock) -> None:
        self._rng, self._clock = rng, clock
        self._free_at = 0.0

    def submit(self, work: Any, /, *given: Any, **named: Any) -> Future[Any]:
        """Call `work` later."""
        call: Future[Any] = Future()
        call.set_running_or_notify_cancel()
        seconds = self._rng.choice([0.0, 0.001, 0.03])
        self._free_at = max(self._free_at, self._clock.now()) + seconds
        self._moment.hold(threads=-1)  # it is no call that the loop has to wait for in real time
        self._clock.call_at(self._free_at, lambda: self._run(call, work, given))
        return call

    def _run(self, call: Future[Any], work: Any, given: tuple[Any, ...]) -> None:
        self._moment.hold(threads=1)
        try:
            call.set_result(work(*given))
        except Exception as error:
            call.set_exception(error)

    @property
    def _moment(self) -> Any:
        return self._clock.loop.moment  # type: ignore[attr-defined]


class Simulation:
    """One run of a seed. Settings may be given instead of drawn."""

    def __init__(self, seed: int, folder: Path, **fixed: Any) -> None:
        self.rng = rng = random.Random(seed)
        self.seen: Counter[str] = Counter()
        drawn: dict[str, Any] = {
            "order": rng.choice(["total", "key", "tenant"]),
            "stack": rng.choice(STACKS),
            "workers": rng.choice([1, 1, 2, 3]),
            "overflow": rng.choice(["block", "block", "reject", "drop_newest"]),
            "max_items": rng.choice([None, None, 30]),
            "prefix_safe": rng.random() < 0.5,
            "bad": rng.choice([0.0, 0.0, 0.02]),
            "open": rng.choice(["eager", "lazy"]),
            "gap": rng.choice([0.1, 0.3, 0.6]),
        }
        if drawn["order"] != "key":  # all that keeps order without keys
            drawn |= {"workers": 1, "stack": rng.choice(["retry", "both"])}
        self.setting = {**drawn, **fixed}
        self.folder = folder / str(seed)
        self.sink = Destination(
            rng,
            prefix_safe=self.setting["prefix_safe"],
            hangs=1e6 if self.setting["order"] == "key" else 3.5,
        )
        self.receipts: dict[int, Receipt] = {}
        self.refused: set[int] = set()
        self.items: dict[int, dict[str, Any]] = {}
        self.is_over = False

    def run(self) -> Counter[str]:
        """Run the day, and check it. Raises `AssertionError`."""
        with FakeClock(max_rounds=200_000) as self.clock, pytest.MonkeyPatch.context() as patch:
            patch.setattr(running, "ThreadPoolExecutor", lambda *_: Disk(self.rng, self.clock))
            self.clock.run(self._day())
            assert not self.clock.leftovers()
        self._check_end()
        return self.seen

    def _batcher(self, overflow: str) -> tuple[Batcher[Any], Spool]:
        setting = self.setting
        self.spool = Spool(
            self.folder, spill="when_full", durability="os", max_items=setting["max_items"]
        )
        key = (lambda item: item["key"]) if setting["order"] == "key" else None
        tenant = (lambda item: item["key"]) if setting["order"] == "tenant" else None
        batcher: Batcher[Any] = Batcher(
            stack(self.sink, *self._decorators()),
            limits=Limits(
                max_items=5,
                max_delay=0.1,
                max_pending_items=20,
                workers=setting["workers"],
                flush_timeout=4.0,
            ),
            key=key,
            tenant=tenant,
            overflow=overflow,  # type: ignore[arg-type]
            open=setting["open"],
            spool=self.spool,
            clock=self.clock,
        )
        return batcher, self.spool

    def _decorators(self) -> list[Any]:
        name = self.setting["stack"]
        retry = Retry(attempts=50, backoff=Backoff(rng=random.Random(self.rng.random())))
        found: dict[str, list[Any]] = {
            "plain": [],
            "breaker": [CircuitBreaker()],
            "timeout": [Timeout(1.0), retry],
            "retry": [retry],
            "both": [CircuitBreaker(), retry],
        }
        return found[name]

    async def _day(self) -> None:
        producers = []
        for number in range(3):
            producers.append(asyncio.create_task(self._produce(number)))
        self.ready = asyncio.Event()
        for _ in range(self.rng.choice([1, 1, 2])):
            await self._session()
        self.is_over = True
        self.ready.set()
        await asyncio.gather(*producers)
        self.sink.weather = "up"
        while True:
            self.batcher, spool = self._batcher("block")
            async with self.batcher:
                await self.clock.sleep(30.0)
            if not self._left(spool):
                self.parked = self._parked(spool)
                break

    async def _session(self) -> None:
        rng = self.rng
        before = dict(self.receipts)
        self.batcher, spool = self._batcher(self.setting["overflow"])
        async with self.batcher:
            self.ready.set()
            for _ in range(rng.randrange(1, 5)):
                (self.sink.weather,) = rng.choices([*WEATHER], [*WEATHER.values()])
                await self.clock.sleep(rng.uniform(0.1, 6.0))
                self.batcher.tally().verify()
                self._check_order()
            self.ready.clear()
            self.batcher.report = await self.batcher.shutdown(rng.uniform(0.5, 15.0))
        report, own = self.batcher.report, self.receipts.keys() - before.keys()
        outcomes = Counter(
            receipt.outcome for each in own if (receipt := self.receipts[each]).outcome is not None
        )
        assert outcomes.total() == len(own)
        assert {each: report.tally.of(each) for each in outcomes} == dict(outcomes)
        assert report.tally.accepted == outcomes.total()
        if self.setting["max_items"] is None:
            assert report.complete, report
        self.seen += Counter(each.name for each in outcomes.elements())
        self.seen["left"] += bool(self._left(spool))
        self.seen["cut"] = self.sink.cut

    @staticmethod
    def _left(spool: Spool) -> int:
        store = opened(spool._folder.settings.path)
        try:
            return store.unsettled
        finally:
            store.close()

    @staticmethod
    def _parked(spool: Spool) -> set[int]:
        settings = spool._folder.settings
        file = ParkedFile(settings.path)
        try:
            return {settings.codec.decoded(parked.item)["n"] for parked in file.items()}
        finally:
            file.close()

    async def _produce(self, number: int) -> None:
        rng, mark = self.rng, number
        while not self.is_over:
            await self.ready_wait()
            batcher = self.batcher
            n = len(self.items)
            key = f"{mark}" if self.setting["order"] == "total" else f"{mark}{rng.choice('ab')}"
            item = {"n": n, "key": key, "bad": rng.random() < self.setting["bad"]}
            self.items[n] = item
            try:
                self.receipts[n] = await batcher.submit(item)
            except (LedgerFull, ClosedError):
                self.refused.add(n)
            await self.clock.sleep(rng.expovariate(1 / self.setting["gap"]))

    async def ready_wait(self) -> None:
        """Wait until a batcher is open, or the day is over."""
        await self.ready.wait()

    # -- laws --------------------------------------------------------------------------------------

    def _check_order(self) -> None:
        by_key: defaultdict[str, list[int]] = defaultdict(list)
        for item in self.sink.applied:
            by_key[item["key"]].append(item["n"])
        for key, numbers in by_key.items():
            assert len(set(numbers)) == len(numbers), f"twice: {key}: {numbers}"
            assert numbers == sorted(numbers), f"order: {key}: {numbers}"
        assert self.sink.most_running <= self.setting["workers"], "too many writes"

    def _check_end(self) -> None:
        self._check_order()
        applied = {item["n"] for item in self.sink.applied}
        assert not self.parked & applied, "an item that was applied is parked"
        assert all(self.items[n]["bad"] for n in self.parked) or self.setting["stack"] in WEAK
        for n, receipt in self.receipts.items():
            if receipt.outcome in SUCCESS:
                assert n in applied | self.parked, f"lost: {self.items[n]} was {receipt.outcome}"
            if receipt.outcome in {Outcome.REJECTED, Outcome.DROPPED, Outcome.UNSENT}:
                assert n not in applied, f"applied: {self.items[n]} was {receipt.outcome}"
        assert not self.refused & applied, "an item that was refused is applied"
