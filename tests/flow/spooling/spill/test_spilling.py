"""A batcher with `spill="when_full"`: which items are stored, and when writing from memory resumes.

White box: the files of the spool, and the limit of pages of its database, which makes a disk full.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from spooling.files.store_help import opened

from sluicegate import (
    Batcher,
    Capabilities,
    CircuitBreaker,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    Timeout,
    UnavailableError,
    WriteResult,
    stack,
)
from sluicegate.errors import LedgerFull
from sluicegate.flow import Spool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluicegate import Batch, Receipt
    from sluicegate.flow.pipe import Pipe
    from sluicegate.testing import FakeClock

SMALL = Limits(max_items=5, max_delay=0.1, max_pending_items=40, flush_timeout=10.0)


class Destination:
    """Applies batches in `seconds`, unless it is down or refuses an item."""

    capabilities = Capabilities(max_concurrency=1)

    def __init__(self, *, down: bool = False, seconds: float = 0.0) -> None:
        self.is_down = down
        self.seconds = seconds
        self.bad: Any = None
        self.items: list[Any] = []
        self.running = self.most_running = self.opened = 0

    async def __aenter__(self) -> None:
        if self.is_down:
            raise UnavailableError("down")
        self.opened += 1

    async def __aexit__(self, *given: object) -> None:
        pass

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Apply a batch at the end of its time."""
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        if self.is_down:
            raise UnavailableError("down")
        errors = {at: PermanentError("bad") for at, item in enumerate(batch) if item == self.bad}
        self.items += [item for item in batch if item != self.bad]
        return WriteResult.failed(batch, errors) if errors else None


class Case:
    """A batcher whose items are numbers, in the order of their making."""

    def __init__(self, clock: FakeClock, folder: Path, sink: Destination, **options: Any) -> None:
        self.clock, self.sink, self.made = clock, sink, 0
        decorators = options.pop("stack", (Retry(),))
        given = {name: options.pop(name) for name in ("max_items",) if name in options}
        self.spool = Spool(folder, spill="when_full", durability="os", **given)
        options = {"limits": SMALL, **options}
        self.batcher: Batcher[int] = Batcher(
            stack(sink, *decorators), spool=self.spool, clock=clock, **options
        )

    async def add(self, count: int, *, every: float = 0.01) -> None:
        """Add more items at a steady rate."""
        for _ in range(count):
            self.made += 1
            await self.batcher.add(self.made - 1)
            await self.clock.sleep(every)

    def stored(self) -> int:
        """Return the number of items that were ever stored."""
        store = opened(self.spool._folder.settings.path)
        try:
            return store.end
        finally:
            store.close()

    @property
    def sender(self) -> Pipe:
        """The sender."""
        return self.spool.sender


@pytest.fixture
def case(fake_clock: FakeClock, tmp_path: Path) -> Callable[..., Case]:
    """Make a batcher in the same folder."""
    return lambda sink, **options: Case(fake_clock, tmp_path / "spool", sink, **options)


ORDERS: list[Any] = [{}, {"key": lambda n: n % 3}, {"tenant": lambda n: n % 3}]


def assert_in_order(items: list[int], count: int, order: dict[str, Any]) -> None:
    """Check that all items are there once, in the order that was promised."""
    assert sorted(items) == [*range(count)]
    for rest in range(3) if order else ():
        own = [item for item in items if item % 3 == rest]
        assert own == sorted(own)
    assert order or items == sorted(items)


async def test_nothing_is_stored_while_the_destination_keeps_up(case: Any) -> None:
    one = case(Destination(seconds=0.05))
    async with one.batcher:
        await one.add(300)
    assert one.sink.items == list(range(300))
    assert one.batcher.report.tally.delivered == 300
    assert one.stored() == 0


@pytest.mark.parametrize("order", ORDERS, ids=["total", "key", "tenant"])
@pytest.mark.parametrize("trouble", [{"is_down": True}, {"seconds": 5.0}], ids=["down", "slow"])
async def test_items_are_stored_during_a_trouble_and_memory_is_used_again_after_it(
    case: Any, order: dict[str, Any], trouble: dict[str, Any]
) -> None:
    one = case(Destination(), **order)
    async with one.batcher as batcher:
        await one.add(50)
        for name, value in trouble.items():
            setattr(one.sink, name, value)
        before = one.clock.now()
        await one.add(400)
        assert one.clock.now() - before < (4.1 if "is_down" in trouble else 25.0)
        assert batcher.tally().spooled > 250
        one.sink.is_down, one.sink.seconds = False, 0.01
        await one.add(1500)
        spooled = batcher.tally().spooled
        await one.add(200)
        assert batcher.tally().spooled == spooled  # although the inflow has never stopped
        sent = one.sender.stats().batcher.tally
    assert_in_order(one.sink.items, 2150, order)
    tally = one.batcher.report.tally
    assert tally.accepted == 2150 == tally.delivered + tally.spooled
    assert sent.delivered == tally.spooled
    assert sent.inside == 0
    assert one.sink.most_running == 1


HOT: dict[str, Any] = {"key": lambda n: 0}


@pytest.mark.parametrize(
    ("stack", "order"),
    [
        *[((Retry(),), order) for order in (*ORDERS, HOT)],
        *[((CircuitBreaker(), Retry()), order) for order in (*ORDERS, HOT)],
        *[((CircuitBreaker(),), HOT), ((), HOT)],  # only keys keep order without a retry
    ],
)
async def test_a_batch_that_meets_an_outage_is_stored_at_once(
    case: Any, stack: Any, order: dict[str, Any]
) -> None:
    one = case(Destination(), stack=stack, **order)
    is_retried = any(isinstance(each, Retry) for each in stack)
    seconds = 0.5 if is_retried else 5.5
    async with one.batcher as batcher:
        assert await batcher.deliver(0) is Outcome.DELIVERED
        one.sink.is_down = True
        for number in range(1, 4):
            async with asyncio.timeout(seconds):
                assert await batcher.deliver(number) is Outcome.SPOOLED
        await one.clock.sleep(0.1)
        one.sink.is_down = False
        if not is_retried:  # the sender's own backoff may last longer than the shutdown
            await one.clock.wait_for(lambda: len(one.sink.items) == 4)
    assert one.sink.items == [0, 1, 2, 3]
    assert one.sink.opened == 1


async def test_a_destination_that_cannot_be_opened_yet_costs_no_item(case: Any) -> None:
    one = case(Destination(down=True), open="lazy")
    async with one.batcher as batcher:
        assert await batcher.deliver(0) is Outcome.SPOOLED
        one.sink.is_down = False
        await one.clock.sleep(60.0)
        assert await batcher.deliver(1) is Outcome.DELIVERED
    assert one.sink.items == [0, 1]


@pytest.mark.parametrize("order", ORDERS, ids=["total", "key", "tenant"])
@pytest.mark.parametrize("phase", ["down", "draining", "switching", "hanging"])
async def test_a_shutdown_stores_what_it_cannot_write(
    case: Any, phase: str, order: dict[str, Any]
) -> None:
    one = case(Destination(), **order)
    async with one.batcher as batcher:
        await one.add(50)
        one.sink.is_down = phase in {"down", "draining"}
        one.sink.seconds = {"switching": 3.0, "hanging": 1000.0}.get(phase, 0.0)
        await one.add(30 if phase == "hanging" else 200)
        if phase == "draining":
            one.sink.is_down, one.sink.seconds = False, 1.0
            await one.add(20)
        report = await batcher.shutdown(2.0)
    assert report.complete, report
    assert one.stored() > 0
    one.sink.is_down, one.sink.seconds = False, 0.01
    again = case(one.sink, **order)
    async with again.batcher:
        await one.clock.sleep(60.0)
    assert_in_order(one.sink.items, one.made, order)


@pytest.mark.parametrize("overflow", ["block", "reject", "drop_newest"])
async def test_a_full_spool_is_treated_like_full_memory(case: Any, overflow: str) -> None:
    one = case(Destination(down=True), open="lazy", max_items=50, overflow=overflow)
    receipts: list[Receipt] = []
    async with one.batcher as batcher:
        while len(receipts) < 300:
            try:
                async with asyncio.timeout(5.0):
                    receipts.append(await batcher.submit(len(receipts)))
            except (LedgerFull, TimeoutError):
                break
            await one.clock.sleep(0.01)
        assert batcher.tally().spooled == 50
        assert len(receipts) == (300 if overflow == "drop_newest" else 90)
        one.sink.is_down = False
        await one.clock.sleep(60.0)
    kept = [n for n, receipt in enumerate(receipts) if receipt.outcome is not Outcome.DROPPED]
    assert one.sink.items == kept
    assert len(kept) >= 90


@pytest.mark.parametrize("stack", [(), (Timeout(2.0), Retry())], ids=["plain", "timeout"])
async def test_a_write_that_hangs_is_cut_and_its_items_are_sent_later(
    case: Any, stack: Any
) -> None:
    one = case(Destination(), key=lambda n: 0, stack=stack)
    async with one.batcher as batcher:
        one.sink.seconds = 1000.0
        first = asyncio.ensure_future(batcher.deliver(0))
        assert await first is Outcome.SPOOLED
        one.sink.seconds = 0.0
        await one.clock.sleep(30.0)
        assert await batcher.deliver(1) is Outcome.DELIVERED
    assert one.sink.items == [0, 1]


async def test_nothing_is_lost_while_the_disk_is_full(case: Any) -> None:
    one = case(Destination())
    async with one.batcher as batcher:
        await one.add(10)
        (segment,) = one.spool._folder.running.store.segments
        pages = segment._db.execute("PRAGMA page_count").fetchone()[0]
        segment._db.execute(f"PRAGMA max_page_count = {pages}")
        one.sink.is_down = True
        adding = asyncio.ensure_future(one.add(1000))
        await one.clock.sleep(30.0)
        stuck = one.made
        segment._db.execute("PRAGMA max_page_count = 1000000")
        await adding
        assert stuck < 700
        assert batcher.tally().spooled > 900
        one.sink.is_down = False
    assert one.sink.items == list(range(1010))


async def test_an_item_refused_for_good_is_no_reason_to_store_others(case: Any) -> None:
    one = case(Destination(), key=lambda n: 0)
    one.sink.bad = 3
    async with one.batcher as batcher:
        receipts = [await batcher.submit(number) for number in range(6)]
    outcomes = [receipt.outcome for receipt in receipts]
    assert outcomes == [Outcome.DELIVERED] * 3 + [Outcome.REJECTED] + [Outcome.DELIVERED] * 2
    assert one.sink.items == [0, 1, 2, 4, 5]
    assert one.stored() == 0
