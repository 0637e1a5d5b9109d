"""Cuts: outcomes are true in any order of decorators and at any moment.

The sink here knows the truth: what it applied. `delivered` must mean applied; `unsent` and
`rejected` must mean not applied.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, cast

import pytest
import tenacity
from hypothesis import example, given
from hypothesis import strategies as st
from tests.properties import examples

from sluicegate import (
    Batch,
    Batcher,
    CircuitBreaker,
    DeadLetter,
    FanOut,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    ThrottledError,
    Timeout,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    WriteResult,
    stack,
)
from sluicegate.batcher import ShutdownReport
from sluicegate.sinks import Isolate, RateLimit, Split
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.filterwarnings("ignore:a DeadLetter inside a Retry")


class Truth:
    """A destination with random behaviour that records what it really applied."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.applied: list[Any] = []
        self.running = 0
        self.overlaps = 0

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        rng = self.rng
        kind = rng.choice(
            [
                "ok",
                "ok",
                "transient",
                "permanent",
                "partial",
                "throttle",
                "down",
                "cut",
                "late",
                "deaf",
                "lost",
                "settle",
            ]
        )
        try:
            await asyncio.sleep(rng.choice([0.0, 0.05, 0.7, 3.0]))
        except asyncio.CancelledError:
            if rng.random() < 0.5:  # the request had reached the server
                self.applied.extend(batch)
            raise
        match kind:
            case "transient":
                raise TransientError("deadlock")
            case "permanent":
                raise PermanentError("no")
            case "throttle":
                raise ThrottledError("slow", retry_after=rng.choice([0.1, 2.0]))
            case "down":
                raise UnavailableError("refused")
            case "lost":
                if rng.random() < 0.5:
                    self.applied.extend(batch)
                raise UnknownOutcomeError("no answer")
            case "partial":
                good = [place for place in range(len(batch)) if rng.random() < 0.5]
                self.applied.extend(batch[place] for place in good)
                errors = [PermanentError("bad"), TransientError("again")]
                return WriteResult.failed(
                    batch, {p: rng.choice(errors) for p in range(len(batch)) if p not in good}
                )
            case "settle":
                self.applied.extend(batch[place] for place in range(0, len(batch), 2))
                batch.settle(range(0, len(batch), 2), Outcome.DELIVERED)
                await asyncio.sleep(3.0)
                raise TransientError("the rest")
            case "late":
                try:
                    await asyncio.sleep(30.0)
                except asyncio.CancelledError:
                    self.applied.extend(batch)
                    raise RuntimeError("made another error of its cancellation") from None
            case "deaf":
                until = asyncio.get_running_loop().time() + 20.0
                while (now := asyncio.get_running_loop().time()) < until:
                    try:
                        await asyncio.sleep(until - now)
                    except asyncio.CancelledError:
                        continue
            case _:
                pass
        self.applied.extend(batch)
        return None


CLASSES = ["permanent", "exhausted", "transient", "given_up", "unknown"]


def decorators(rng: random.Random, target: Truth) -> list[Any]:
    free = rng.sample(CLASSES, len(CLASSES))
    """The classes that no dead letters take yet."""

    def dead_letters() -> Any:
        taken = [free.pop() for _ in range(rng.randint(1, len(free)))] if free else []
        if not taken:
            return Isolate()
        return DeadLetter(target, record=lambda record: record.item, take=cast("Any", taken))

    pool: list[Callable[[], Any]] = [
        lambda: Timeout(rng.choice([0.5, 2.0, 6.0])),
        lambda: Retry(
            attempts=rng.randint(1, 4),
            backoff=tenacity.wait_fixed(rng.choice([0.0, 0.3, 4.0])),
            give_up_after=rng.choice([None, 2.0]),
        ),
        dead_letters,
        lambda: CircuitBreaker(
            None,
            consecutive=rng.randint(1, 3),
            open_for=rng.choice([0.5, 4.0]),
            when_open=rng.choice(["wait", "raise"]),
        ),
        lambda: RateLimit(
            rng.choice([1.0, 20.0]),
            burst=rng.choice([0, 5]),
        ),
        lambda: Split(rng.choice([1, 2])),
        Isolate,
    ]
    return [rng.choice(pool)() for _ in range(rng.randint(0, 4))]


@examples(12, long=60)
@given(
    seed=st.integers(0, 2**40),
    workers=st.integers(1, 3),
    deadline=st.sampled_from([0.0, 0.3, 1.0, 8.0]),
)
@example(seed=1, workers=1, deadline=0.3)
def test_outcomes_tell_the_truth_in_every_order_and_at_every_moment(
    seed: int, workers: int, deadline: float
) -> None:
    """B-T57: 200 virtual seconds later the report is unchanged."""
    rng = random.Random(seed)
    main_truth, letters_truth = Truth(rng), Truth(rng)
    receipts: dict[int, Any] = {}

    async def main() -> ShutdownReport[int]:
        sink = stack(main_truth, *decorators(rng, letters_truth))
        limits = Limits(max_items=3, workers=workers, max_pending_items=30, flush_timeout=8.0)
        async with Batcher(sink, limits=limits) as batcher:
            for item in range(12):
                receipts[item] = await batcher.submit(item)
                await asyncio.sleep(rng.choice([0.0, 0.0, 0.4]))
            await asyncio.sleep(rng.choice([0.0, 1.0, 5.0, 30.0]))
            report = await batcher.shutdown(deadline=deadline)
            report.verify()
            assert report.seconds <= deadline + 1e-9
        before = batcher.tally()
        await asyncio.sleep(200.0)
        assert batcher.tally() == before
        return report

    with FakeClock() as clock:
        report = clock.run(main())
    applied = set(main_truth.applied)
    lettered = set(letters_truth.applied)
    for item, receipt in receipts.items():
        outcome = receipt.outcome
        if outcome in {Outcome.DELIVERED, Outcome.DUPLICATE}:
            assert item in applied, (item, outcome)
        elif outcome is Outcome.DEAD_LETTERED:
            assert item in lettered, (item, outcome)
        elif outcome in {Outcome.UNSENT, Outcome.REJECTED}:
            assert item not in applied, (item, outcome)
        else:
            assert outcome is Outcome.UNKNOWN
    assert set(report.unsent) == {
        item for item, receipt in receipts.items() if receipt.outcome is Outcome.UNSENT
    }


@examples(10, long=60)
@given(
    seed=st.integers(0, 2**40),
    workers=st.integers(1, 3),
    deadline=st.sampled_from([0.0, 0.3, 1.0, 8.0]),
)
def test_outcomes_tell_the_truth_over_several_branches(
    seed: int, workers: int, deadline: float
) -> None:
    """B-T57, B-T53: delivered means applied in every required branch; unsent means applied in
    none.
    """
    rng = random.Random(seed)
    truths = [Truth(rng), Truth(rng)]
    letters, extra = Truth(rng), Truth(rng)
    receipts: dict[int, Any] = {}

    async def main() -> ShutdownReport[int]:
        inner: list[Callable[[], Any]] = [
            lambda: Timeout(rng.choice([0.5, 2.0])),
            lambda: Retry(backoff=tenacity.wait_fixed(rng.choice([0.0, 0.3, 4.0]))),
        ]
        branches = [
            stack(truth, *(rng.choice(inner)() for _ in range(rng.randint(0, 3))))
            for truth in truths
        ]
        outer = [
            decorator
            for decorator in decorators(rng, letters)
            if not isinstance(decorator, (Retry, Isolate))
        ]
        mode: Any = rng.choice(["all", "parallel", "sequential"])
        sink = stack(
            FanOut(
                *branches,
                best_effort=[stack(extra, Retry())] if rng.random() < 0.5 else [],
                mode=mode,
            ),
            *outer,
        )
        limits = Limits(max_items=3, workers=workers, max_pending_items=30, flush_timeout=8.0)
        async with Batcher(sink, limits=limits) as batcher:
            for item in range(12):
                receipts[item] = await batcher.submit(item)
                await asyncio.sleep(rng.choice([0.0, 0.0, 0.4]))
            await asyncio.sleep(rng.choice([0.0, 1.0, 5.0, 30.0]))
            report = await batcher.shutdown(deadline=deadline)
            report.verify()
        before = batcher.tally()
        await asyncio.sleep(200.0)
        assert batcher.tally() == before
        return report

    with FakeClock() as clock:
        report = clock.run(main())
    applied = [set(truth.applied) for truth in truths]
    for item, receipt in receipts.items():
        if receipt.outcome in {Outcome.DELIVERED, Outcome.DUPLICATE}:
            assert all(item in there for there in applied), item
        elif receipt.outcome is Outcome.UNSENT:
            assert not any(item in there for there in applied), item
        elif receipt.outcome is Outcome.REJECTED:
            assert not all(item in there for there in applied), item
        elif receipt.outcome is Outcome.DEAD_LETTERED:
            assert item in letters.applied
    assert set(report.unsent) == {
        item for item, receipt in receipts.items() if receipt.outcome is Outcome.UNSENT
    }


async def test_a_backoff_left_by_an_exception_takes_its_slot_at_once_and_gives_it_back_once(
    fake_clock: FakeClock,
) -> None:
    """design 3.3: above the limit if necessary; afterwards there are as many slots as before."""
    running = 0
    most = 0

    async def write(batch: Batch[int]) -> None:
        nonlocal running, most
        if batch[0] < 6:
            raise TransientError("t")
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.3)
        running -= 1

    sink = stack(write, Retry(backoff=tenacity.wait_fixed(10.0)), Timeout(0.5))
    async with Batcher(sink, limits=Limits(max_items=1, workers=2)) as batcher:
        await batcher.add_many(range(6))
        assert (await batcher.flush()).complete
        assert fake_clock.now() <= 1.0
        await batcher.add_many(range(6, 20))
        assert (await batcher.flush()).complete
        report = await batcher.shutdown()
    assert most == 2
    assert (report.tally.unsent, sorted(report.unsent)) == (6, [*range(6)])
