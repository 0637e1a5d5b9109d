"""Order, and the rule that the tally adds up at every moment."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from helpers import Gated, Recording
from sluicegate import AddTimeout, Batch, Batcher, Limits, Observer, Outcome, WriteResult
from sluicegate.batcher import Reason, Tally
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@examples(25, long=200)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    max_items=st.integers(1, 7),
    seed=st.integers(0, 2**32),
)
def test_one_worker_writes_in_arrival_order(counts: list[int], max_items: int, seed: int) -> None:
    """B-T14, batcher/B22: each producer's items stay in that producer's order."""
    rng = random.Random(seed)
    arrived: list[tuple[int, int]] = []
    sink = Recording()

    async def write(batch: Batch[tuple[int, int]]) -> None:
        await asyncio.sleep(rng.choice([0.0, 0.1, 1.0]))
        await sink.write(batch)

    async def produce(batcher: Batcher[tuple[int, int]], number: int, count: int) -> None:
        for i in range(count):
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random())
            await batcher.add((number, i))
            arrived.append((number, i))

    async def main() -> None:
        limits = Limits(max_items=max_items, max_pending_items=3 * max_items)
        async with Batcher(write, limits=limits, shutdown_deadline=1000.0) as batcher:
            await asyncio.gather(*(produce(batcher, n, count) for n, count in enumerate(counts)))

    with FakeClock() as clock:
        clock.run(main())
    for number, count in enumerate(counts):
        assert [i for n, i in sink.items if n == number] == list(range(count))
    assert sink.items == arrived


class Ledger(Observer):
    """Checks the tally at every callback."""

    def __init__(self) -> None:
        self.batcher: Batcher[Any] | None = None
        self.outcomes: Counter[Outcome] = Counter()
        self.flushed = 0
        self.broken: list[BaseException] = []

    def check(self) -> None:
        assert self.batcher is not None
        try:
            self.batcher.tally().verify()
        except AssertionError as error:  # an observer's error is only logged
            self.broken.append(error)

    def on_sealed(self, batch: Batch[Any]) -> None:
        self.check()

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        self.outcomes[outcome] += len(indices)
        self.check()

    def on_flushed(
        self, batch: Batch[Any], seconds: float, errors: Mapping[int, BaseException]
    ) -> None:
        self.flushed += 1
        self.check()


async def unruly(batch: Batch[int], rng: random.Random) -> WriteResult | None:
    """A destination with random behaviour."""
    await asyncio.sleep(rng.choice([0.0, 0.01, 0.5, 3.0]))
    kind = rng.choice(["ok", "ok", "fail", "partial", "settle", "hang", "deaf", "short"])
    if kind == "fail":
        raise ConnectionError("down")
    if kind == "partial":
        return WriteResult.failed(batch, {i: ValueError("bad") for i in range(0, len(batch), 2)})
    if kind == "settle":
        batch.settle(range(len(batch) // 2), Outcome.DUPLICATE)
        raise ConnectionError("half")
    if kind == "hang":
        await asyncio.Event().wait()
    if kind == "deaf":
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            await asyncio.sleep(2.0)
    if kind == "short":
        return WriteResult.from_outcomes(batch, [None] * (len(batch) - 1))
    return None


@examples(40, long=500)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 4),
    max_items=st.integers(1, 5),
    deadline=st.sampled_from([0.0, 0.2, 2.0, 60.0]),
)
def test_the_tally_adds_up_at_every_moment_whatever_the_sink_does(
    seed: int, workers: int, max_items: int, deadline: float
) -> None:
    """batcher/4b.1, I1, I10: every accepted item has exactly one outcome, its receipt agrees, and
    nothing remains.
    """
    rng = random.Random(seed)
    ledger = Ledger()
    receipts: list[Any] = []

    async def act(batcher: Batcher[int]) -> None:
        for i in range(rng.randrange(30)):
            match rng.randrange(8):
                case 0 | 1:
                    await batcher.add(i)
                case 2:
                    batcher.try_add(i)
                case 3 | 4:
                    receipts.append(await batcher.submit(i))
                case 5:
                    adding = asyncio.create_task(batcher.add(i))
                    await asyncio.sleep(rng.choice([0.0, 0.1]))
                    adding.cancel()
                    await asyncio.wait([adding])
                case 6:
                    await batcher.flush(timeout=rng.choice([0.0, 1.0]))
                case _:
                    try:
                        await batcher.add(i, timeout=rng.choice([0.0, 0.01]))
                    except AddTimeout:
                        pass
            batcher.tally().verify()
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.3]))

    async def main() -> None:
        limits = Limits(
            max_items=max_items,
            workers=workers,
            max_pending_items=(workers + 1) * max_items,
            flush_timeout=5.0,
        )
        async with Batcher(lambda_sink, limits=limits, observers=[ledger]) as batcher:
            ledger.batcher = batcher
            await asyncio.gather(act(batcher), act(batcher))
            report = await batcher.shutdown(deadline=deadline)
            began = report.seconds
        report.verify()
        assert began <= deadline + 1e-9
        assert (
            sum(ledger.outcomes.values()) + report.tally.unsent - ledger.outcomes[Outcome.UNSENT]
            == report.tally.accepted
        )
        assert all(receipt.done for receipt in receipts)
        final = batcher.tally()
        await asyncio.sleep(200.0)
        assert batcher.tally() == final

    async def lambda_sink(batch: Batch[int]) -> WriteResult | None:
        return await unruly(batch, rng)

    with FakeClock() as clock:
        clock.run(main())
    assert ledger.broken == []


def test_the_reasons_are_a_closed_set() -> None:
    """batcher/B7."""
    assert {reason.value for reason in Reason} == {
        "size", "bytes", "time", "manual", "shutdown", "shutdown_request", "pressure",
    }  # fmt: skip


def test_the_tally_has_eight_outcomes_and_three_states() -> None:
    """design 3.5, batcher/B14: an accepted item is counted in exactly one of them."""
    outcomes = {
        "delivered", "duplicate", "spooled", "dead_lettered",
        "rejected", "dropped", "unsent", "unknown",
    }  # fmt: skip
    assert {outcome.value for outcome in Outcome} == outcomes
    counts = dict.fromkeys([*outcomes, "queued", "in_flight", "backing_off"], 1)
    tally = Tally(accepted=11, **counts)
    tally.verify()
    assert (tally.settled, tally.inside) == (8, 3)
    for name in counts:
        with pytest.raises(AssertionError, match="does not add up"):
            replace(tally, **{name: 2}).verify()


async def test_stats_are_a_snapshot_and_the_repr_has_the_essential_figures(
    fake_clock: FakeClock,
) -> None:
    """batcher/B15: a snapshot adds up, and does not change while writes continue."""
    sink = Gated()
    async with Batcher(sink, name="audit", limits=Limits(max_items=2)) as batcher:
        await batcher.add_many([1, 2, 3])
        before = batcher.stats().tally
        counts = "queue=1, enq=3, ok=0, fail=0, drop=0"
        assert repr(batcher) == f"Batcher(name='audit', state='open', {counts})"
        sink.gate.set()
    after = batcher.stats().tally
    for tally in (before, after):
        tally.verify()
    assert (before.queued, before.in_flight, before.delivered) == (1, 2, 0)
    assert (after.inside, after.delivered) == (0, 3)
    assert "state='closed', queue=0, enq=3, ok=3," in repr(batcher)
