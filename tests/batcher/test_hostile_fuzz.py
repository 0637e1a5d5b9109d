"""A sink and producers with random behaviour from a seed: the outcome of every item stays correct.

The ground truth is the set of items that the sink applied, its consistent answers, and the items
with an inconsistent one. At every step the tally adds up; every receipt resolves; an item succeeds
only if the sink said so; and nothing is sent again after an inconsistent answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.seeds import run_by

from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    Capabilities,
    ClosedError,
    DeadLetter,
    Limits,
    Outcome,
    PermanentError,
    Receipt,
    Retry,
    ThrottledError,
    Timeout,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    WriteResult,
    stack,
)
from sluicegate.errors import ResultMismatch
from sluicegate.sinks import Isolate, MemorySink, Split
from sluicegate.testing import FakeClock

COUNT = 25
LONG = 3000


class Beyond(BaseException):
    """Not caught by `except Exception`."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


RAISES: list[Callable[[], BaseException]] = [
    lambda: TransientError("t"),
    lambda: PermanentError("p"),
    lambda: UnknownOutcomeError("u"),
    lambda: UnavailableError("away"),
    lambda: ThrottledError("slow", retry_after=0.3),
    lambda: KeyError("k"),
    Unspeakable,
    Beyond,
    asyncio.CancelledError,
    GeneratorExit,
    lambda: IndexError("negative"),
]

MISSETTLES: list[Callable[[Any, random.Random], object]] = [
    lambda batch, rng: batch.settle([0, 0, 0], Outcome.DELIVERED),
    lambda batch, rng: batch.settle([-rng.randint(1, 3)], Outcome.DELIVERED),
    lambda batch, rng: batch.settle(range(len(batch) + rng.randint(1, 3)), Outcome.DELIVERED),
    lambda batch, rng: batch.settle([len(batch)], Outcome.DELIVERED),
    lambda batch, rng: batch.settle([True], Outcome.DELIVERED),
    lambda batch, rng: batch.settle([None], Outcome.DELIVERED),
    lambda batch, rng: batch.settle(None, Outcome.DELIVERED),
    lambda batch, rng: batch.settle(
        [0], rng.choice([Outcome.REJECTED, Outcome.UNSENT, "delivered", None])
    ),
    lambda batch, rng: batch.settle([0], Outcome.DELIVERED, 5),
    lambda batch, rng: batch.pick(range(len(batch))).settle([99], Outcome.DELIVERED),
]

MISANSWERS: list[Callable[[Any, Any], object]] = [
    lambda batch, last: WriteResult(len(batch) + 1),
    lambda batch, last: WriteResult(len(batch), errors={len(batch): PermanentError("p")}),
    lambda batch, last: WriteResult(len(batch), errors={-1: PermanentError("p")}),
    lambda batch, last: WriteResult(len(batch), errors={0: "no"}),  # type: ignore[dict-item]  # that is the point
    lambda batch, last: WriteResult(
        len(batch), errors={0: PermanentError("p")}, outcomes={0: Outcome.DELIVERED}
    ),
    lambda batch, last: WriteResult(len(batch), outcomes={0: Outcome.REJECTED}),
    lambda batch, last: WriteResult.from_outcomes(batch, [None] * (len(batch) - 1)),
    lambda batch, last: WriteResult.failed(batch, {len(batch) + 3: PermanentError("p")}),
    lambda batch, last: last or "nonsense",
    lambda batch, last: 3,
    lambda batch, last: True,
]


class Hostile:
    """Applies, settles, returns and raises at random; records the truth."""

    def __init__(self, rng: random.Random, *, safe: bool) -> None:
        self.rng = rng
        self.capabilities = Capabilities(key_prefix_safe=safe)
        self.said: set[int] = set()
        self.must: set[int] = set()
        self.doomed: set[int] = set()
        self.last: WriteResult | None = None
        self.check: Callable[[], None] = lambda: None
        self.broken: list[str] = []

    async def write(self, batch: Batch[int]) -> Any:
        again = self.doomed.intersection(batch)
        if again:
            self.broken.append(f"{again} sent again after an answer that did not fit")
        self.check()
        doubted = False
        for _ in range(self.rng.randint(0, 3)):
            match self.rng.randint(0, 5):
                case 0 | 1:
                    self.settle(batch, doubted)
                case 2:
                    doubted = self.missettle(batch) or doubted
                    self.check()
                    if doubted and self.rng.random() < 0.3:
                        batch.settle([77], Outcome.DELIVERED)
                case 3:
                    await asyncio.sleep(self.rng.choice([0, 0.01, 1.0, 9.0]))
                case _:
                    await asyncio.sleep(0)
            self.check()
        return self.end(batch, doubted)

    def settle(self, batch: Batch[int], doubted: bool) -> None:
        indices = self.rng.sample(range(len(batch)), self.rng.randint(0, len(batch)))
        self.say(batch, indices, doubted)
        batch.settle(indices, self.rng.choice([Outcome.DELIVERED, Outcome.DUPLICATE]))

    def say(self, batch: Batch[int], indices: Any, doubted: bool) -> None:
        if not doubted:
            told = {batch[i] for i in indices}
            self.said |= told
            if not batch.delivery.closed:
                self.must |= told

    def missettle(self, batch: Batch[int]) -> bool:
        unsettled = {batch[i] for i in batch.unsettled()}
        closed = batch.delivery.closed
        try:
            self.rng.choice(MISSETTLES)(batch, self.rng)
        except ResultMismatch:
            if not closed:
                self.doomed |= unsettled
            return not closed
        raise AssertionError("not noticed")

    def end(self, batch: Batch[int], doubted: bool) -> Any:
        task = asyncio.current_task()
        assert task is not None
        match self.rng.randint(0, 9):
            case 0 | 1 | 2:
                if not task.cancelling():
                    self.say(batch, range(len(batch)), doubted)
                return None
            case 3 | 4 | 5:
                failed = set(self.rng.sample(range(len(batch)), self.rng.randint(0, len(batch))))
                errors = {i: self.rng.choice(RAISES)() for i in failed}
                self.last = WriteResult.failed(batch, errors)
                if not task.cancelling():
                    self.say(batch, [i for i in range(len(batch)) if i not in failed], doubted)
                return self.last
            case 6 | 7:
                answer = None
                last = self.last
                if last is not None and (last.lineage is batch.lineage and last.size == len(batch)):
                    last = None
                self.doomed |= (
                    {batch[i] for i in batch.unsettled()} if not batch.delivery.closed else set()
                )
                answer = self.rng.choice(MISANSWERS)(batch, last)
                return answer
            case _:
                error = self.rng.choice(RAISES)()
                raise error


def stacked(sink: Hostile, rng: random.Random) -> Any:
    layers: list[Any] = []
    if rng.random() < 0.4:
        layers.append(Timeout(2.0))
    if rng.random() < 0.3:
        layers.append(Isolate())
    if rng.random() < 0.8:
        layers.append(
            Retry(
                rng.randint(1, 4),
                backoff=Backoff(base=0.05, longest=1.0, rng=rng),
                give_up_after=3.0,
                resend_unknown=rng.random() < 0.7,
            )
        )
    if rng.random() < 0.3:
        layers.append(Split(max_items=2))
    if rng.random() < 0.4:
        layers.append(DeadLetter(MemorySink()))
    return stack(sink, *layers) if layers else sink


def batcher_of(sink: Hostile, rng: random.Random) -> Batcher[int]:
    workers = rng.randint(1, 3)
    size = rng.randint(1, 6)
    limits = Limits(
        max_items=size,
        max_delay=0.1,
        workers=workers,
        flush_timeout=5.0,
        max_pending_items=(workers + 1) * size + rng.randint(0, 9),
    )
    given: dict[str, Any] = {}
    if rng.random() < 0.5:
        given["key"] = lambda item: item % 3
        given["on_key_failure"] = rng.choice(["skip", "skip", "pause", "fail"])
    if rng.random() < 0.3:
        given["tenant"] = lambda item: item % 2
    given["overflow"] = rng.choice(["block", "drop_newest", "drop_oldest"])
    given["on_failure"] = rng.choice(["log", "log", "log", "crash"])
    return Batcher(stacked(sink, rng), limits=limits, shutdown_deadline=10.0, **given)


async def hostile_run(seed: int) -> None:
    rng = random.Random(seed)
    sink = Hostile(rng, safe=rng.random() < 0.3)
    batcher = batcher_of(sink, rng)
    sink.check = lambda: batcher.tally().verify()
    receipts: dict[int, Receipt] = {}
    await batcher.__aenter__()

    async def produce(first: int) -> None:
        for item in range(first, first + rng.randint(1, 25)):
            try:
                if rng.random() < 0.7:
                    receipts[item] = await batcher.submit(
                        item, timeout=rng.choice([9.0, 0.5])
                    )  # paused items may fill the ledger
                elif rng.random() < 0.5:
                    batcher.try_add(item)
                else:
                    await batcher.flush(timeout=rng.choice([0.0, 1.0]))
            except (ClosedError, TimeoutError):
                pass
            except Exception as error:
                if type(error).__name__ != "KeyFailedError":
                    raise
            batcher.tally().verify()
            await asyncio.sleep(rng.choice([0, 0, 0.05, 0.5]))

    async with asyncio.TaskGroup() as group:
        for first in (0, 1000, 2000):
            group.create_task(produce(first))
        group.create_task(asyncio.sleep(rng.uniform(0.0, 5.0)))
    report = await batcher.shutdown(rng.choice([0.0, 1.0, 10.0]))
    report.verify()
    assert not sink.broken, sink.broken
    for item, receipt in receipts.items():
        assert receipt.done, f"the receipt of {item} has no outcome"
        if receipt.outcome in {Outcome.DELIVERED, Outcome.DUPLICATE}:
            assert item in sink.said, f"{item} is {receipt.outcome}, and the sink never said so"
        elif item in sink.must:
            raise AssertionError(
                f"{item} is {receipt.outcome}, though the sink said that it was done"
            )
        if item in sink.doomed:
            assert receipt.outcome in {Outcome.UNKNOWN, Outcome.DEAD_LETTERED}, (
                f"{item} is {receipt.outcome} after an answer that did not fit"
            )


def fuzz(first: int, count: int) -> None:
    for seed in range(first, first + count):
        with run_by(
            'import sys; sys.path.append("tests/batcher"); import test_hostile_fuzz as it; '
            f"it.fuzz({seed}, 1)"
        ):
            clock = FakeClock()
            try:
                clock.run(hostile_run(seed))
            finally:
                clock.close()


def test_a_hostile_sink_makes_no_count_wrong() -> None:
    """See above."""
    fuzz(0, COUNT)


@pytest.mark.soak
def test_a_hostile_sink_makes_no_count_wrong_for_long() -> None:
    """See above."""
    fuzz(COUNT, LONG)
