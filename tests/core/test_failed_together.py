"""Items that fail together share an exception object: it is judged once, with a result per item.

White box: the verdicts of a delivery.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import (
    Batch,
    Batcher,
    ErrorClass,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    RowBatch,
    TransientError,
    UnknownOutcomeError,
    send,
    stack,
)
from sluicegate._core.classify import distinct
from sluicegate._core.delivery.delivery import Delivery
from sluicegate._core.delivery.states import Tries
from sluicegate.errors import CircuitOpenError, StoppedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import FrameType

    from sluicegate._core.delivery.host import Condition
    from sluicegate.testing import FakeClock


class Failing:
    """Raises for the whole batch, `times` times, then delivers."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def write(self, batch: Batch[Any]) -> None:
        if self.times:
            self.times -= 1
            raise TransientError("try again")


async def calls(sink: Failing, batch: Batch[int]) -> int:
    """The number of Python and C function calls of a write."""
    count = 0

    def count_one(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    gc.disable()  # finalizers of objects left by other tests would count
    sys.setprofile(count_one)
    try:
        await send(sink, batch)
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_write_that_fails_as_a_whole_needs_no_call_per_item(
    fake_clock: FakeClock, failures: int
) -> None:
    needed: list[int] = []
    for size in (50, 500):
        batch, sink = RowBatch(range(size)), Failing(failures)
        for _ in range(failures - 1):
            await send(sink, batch)
        needed.append(await calls(sink, batch))
    assert needed[0] == needed[1] < 80


async def test_each_error_object_is_heard_once(fake_clock: FakeClock) -> None:
    heard: list[BaseException] = []

    class Ears:
        def book_outcome(self, indices: Sequence[int], outcome: Outcome, details: Any) -> None: ...
        def heard(self, errors: Iterable[BaseException]) -> None:
            heard.extend(errors)

        def reported(self, source: object, condition: Condition | None) -> None: ...
        def retrying(self, kind: ErrorClass, items: int, delay: float) -> None: ...
        def throttled(self, until: float) -> None: ...

    one, other = TransientError("one"), TransientError("one")
    delivery = Delivery(4, books=Ears())
    delivery.begin(range(4))
    delivery.failed({0: one, 1: other, 2: one, 3: one})
    assert heard == [one, other]


@pytest.mark.skipif(
    sys.version_info[:2] in {(3, 12), (3, 13)},
    reason="the collector frees them there, as the ceilings of tests/batcher/test_costs.py say",
)
async def test_items_that_failed_before_their_success_are_freed_with_their_batch(
    fake_clock: FakeClock,
) -> None:
    """Without the collector: no cycle of errors, tracebacks and frames holds a batch."""

    class Item:
        """An item that supports weak references."""

    gc.collect()
    gc.disable()
    try:
        item = Item()
        seen = weakref.ref(item)
        async with Batcher(stack(Failing(2), Retry()), limits=Limits(max_items=1)) as batcher:
            await batcher.add(item)
            del item
            await batcher.flush()
            await asyncio.sleep(0)
            assert seen() is None
    finally:
        gc.enable()


def test_distinct_errors_are_told_apart_by_identity_not_by_equality() -> None:
    class Alike(Exception):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]  # a client's exception may have none

    one, other = Alike(), Alike()
    assert [*map(id, distinct([one, other, one]))] == [id(one), id(other)]
    assert distinct([one] * 3) == (one,)
    assert distinct([]) == ()


KINDS = (TransientError, PermanentError, StoppedError, UnknownOutcomeError, CircuitOpenError)
SIZE = 6


class Model:
    """The state of a delivery's items, computed item by item."""

    def __init__(self) -> None:
        self.tries: dict[int, Tries] = {}
        self.errors: dict[int, BaseException] = {}
        self.doubted: set[int] = set()
        self.verdicts = dict.fromkeys(range(SIZE), Outcome.UNSENT)

    def failed(self, errors: Mapping[int, BaseException], now: float) -> None:
        for index, error in errors.items():
            self.errors[index] = error
            if not isinstance(error, CircuitOpenError):
                before = self.tries.get(index, Tries(0, now, now))
                self.tries[index] = Tries(before.count + 1, before.first_at, now)
            if isinstance(error, UnknownOutcomeError):
                self.doubted.add(index)
            stopped = isinstance(error, StoppedError)
            verdict = Outcome.UNSENT if stopped else Outcome.REJECTED
            self.verdicts[index] = Outcome.UNKNOWN if index in self.doubted else verdict


class Paced:
    """The slots of a delivery, of which only the time is used."""

    def __init__(self) -> None:
        self.clock, self.time = self, 0.0

    def now(self) -> float:
        return self.time


@given(data=st.data())
def test_items_know_what_they_would_know_one_by_one(data: st.DataObject) -> None:
    """For any mixture of shared and own errors, over several writes of parts."""
    slots: Any = Paced()
    delivery, model = Delivery(SIZE, slots=slots), Model()
    for write in range(data.draw(st.integers(1, 4))):
        slots.time = float(write)
        everything = {*range(SIZE)}
        part = sorted(data.draw(st.just(everything) | st.sets(st.sampled_from(range(SIZE)))))
        shared = [kind("shared") for kind in KINDS]
        mixed = st.sampled_from(shared) | st.sampled_from(KINDS).map(lambda kind: kind("own"))
        if data.draw(st.booleans()):
            errors = dict.fromkeys(part, data.draw(st.sampled_from(shared)))
        else:
            errors = {index: data.draw(mixed) for index in part}
        delivery.begin(part)
        delivery.failed(errors)
        model.failed(errors, slots.time)
    for index in range(SIZE):
        assert delivery.error(index) is model.errors.get(index)
        assert delivery.tries(index) == model.tries.get(index)
        assert delivery.verdict(index) is model.verdicts[index]
    assert set(delivery.maybe_applied) == model.doubted
