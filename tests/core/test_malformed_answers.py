"""Results that do not fit their batch: the outcome of each unsettled item is unknown, and none is
resent automatically.

White box: the origin of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from sluicegate import (
    Backoff,
    Batch,
    Outcome,
    PermanentError,
    Retry,
    RowBatch,
    TransientError,
    WriteResult,
    send,
)
from sluicegate.errors import ResultMismatch
from sluicegate.testing import FakeClock

ERROR = PermanentError("refused")
new_result: Any = WriteResult  # wrong types are intended here


class Evil(Mapping[int, Any]):
    """A mapping that raises when it is read."""

    def __getitem__(self, key: int) -> Any:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError

    def __len__(self) -> int:
        return 1


class Half:
    """Settles the first item, then calls `settle` wrongly, then ends as specified."""

    def __init__(
        self,
        mistake: Callable[[Batch[Any]], object],
        *,
        then: BaseException | None = None,
        answer: object = None,
    ) -> None:
        self.mistake = mistake
        self.then = then
        self.answer = answer
        self.calls = 0

    async def write(self, batch: Batch[Any]) -> Any:
        self.calls += 1
        if self.calls == 1:
            batch.settle([0], Outcome.DELIVERED)
        try:
            self.mistake(batch)
        except ResultMismatch:
            if self.then is not None:
                raise self.then from None
            return self.answer
        raise AssertionError("the mistake was not noticed")


MISTAKES: dict[str, Callable[[Any], object]] = {
    "the same index three times": lambda batch: batch.settle([1, 1, 1], Outcome.DELIVERED),
    "a negative index": lambda batch: batch.settle([-1], Outcome.DELIVERED),
    "an index beyond the end": lambda batch: batch.settle([1, 3], Outcome.DELIVERED),
    "a range beyond the end": lambda batch: batch.settle(range(1, 9), Outcome.DELIVERED),
    "a range that begins below zero": lambda batch: batch.settle(range(-1, 2), Outcome.DELIVERED),
    "a boolean": lambda batch: batch.settle([True], Outcome.DELIVERED),
    "a string": lambda batch: batch.settle(["1"], Outcome.DELIVERED),
    "text": lambda batch: batch.settle("12", Outcome.DELIVERED),
    "no index at all": lambda batch: batch.settle([None], Outcome.DELIVERED),
    "no indices": lambda batch: batch.settle(None, Outcome.DELIVERED),
    "a number": lambda batch: batch.settle(1, Outcome.DELIVERED),
    "a float": lambda batch: batch.settle([1.0], Outcome.DELIVERED),
    "indices without end": lambda batch: batch.settle(itertools.count(), Outcome.DELIVERED),
    "a failure": lambda batch: batch.settle([1], Outcome.REJECTED),
    "the name of an outcome": lambda batch: batch.settle([1], "delivered"),
    "an outcome that is none": lambda batch: batch.settle([1], None),
    "details that are a list": lambda batch: batch.settle([1], Outcome.DELIVERED, ["row"]),
    "details that cannot be read": lambda batch: batch.settle([1], Outcome.DELIVERED, Evil()),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize(
    "end",
    [
        {"then": TransientError("t")},
        {"then": PermanentError("p")},
        {"then": KeyError("k")},
        {},
        {"answer": "fine"},
    ],
    ids=repr,
)
async def test_a_settle_that_does_not_fit_leaves_every_unsettled_item_unknown(
    fake_clock: FakeClock, mistake: Callable[[Batch[Any]], object], end: dict[str, Any]
) -> None:
    """Whatever the sink raises or returns afterwards."""
    batch = RowBatch("abc")
    sink = Half(mistake, **end)
    errors = await send(Retry(backoff=Backoff())(sink), batch)
    assert list(errors) == [1, 2]
    assert {type(error) for error in errors.values()} == {ResultMismatch}
    assert batch.delivery.left == 2
    assert [batch.delivery.verdict(index) for index in range(3)] == [
        Outcome.DELIVERED,
        Outcome.UNKNOWN,
        Outcome.UNKNOWN,
    ]
    assert batch.maybe_applied == {1, 2}
    assert sink.calls == 1


async def test_a_settle_of_a_part_that_does_not_fit_leaves_the_whole_write_unknown(
    fake_clock: FakeClock,
) -> None:
    """Also for a part that represents groups of items."""
    mistakes: list[Callable[[Batch[Any]], object]] = [
        lambda batch: batch.pick([1, 2]).settle([7], Outcome.DELIVERED),
        lambda batch: batch.pick([1, 2]).derive(["bc"], [(0, 1)]).settle([1], Outcome.DELIVERED),
    ]
    for mistake in mistakes:
        batch = RowBatch("abcd")
        errors = await send(Half(mistake, then=TransientError("t")), batch)
        assert list(errors) == [1, 2, 3]
        assert {type(error) for error in errors.values()} == {ResultMismatch}


async def test_what_was_settled_wrongly_in_a_write_that_was_cut_is_not_sent_again(
    fake_clock: FakeClock,
) -> None:
    """`Timeout` creates its own errors from the verdicts, and a retry would resend those items."""
    batch = RowBatch("abc")
    with pytest.raises(ResultMismatch):
        batch.settle([5], Outcome.DELIVERED)  # a task of the sink, after its write has ended
    sink = Half(lambda _: None)
    errors = await send(sink, batch)
    assert {type(error) for error in errors.values()} == {ResultMismatch}
    assert list(errors) == [0, 1, 2]
    assert sink.calls == 0


async def test_a_settle_after_one_that_did_not_fit_says_nothing(fake_clock: FakeClock) -> None:
    """If a sink suppresses the error, its later settlements in this write are ignored."""

    async def write(batch: Batch[Any]) -> None:
        with pytest.raises(ResultMismatch):
            batch.settle([0, 0], Outcome.DELIVERED)
        batch.settle(range(len(batch)), Outcome.DELIVERED)

    batch = RowBatch("ab")
    errors = await send(_sink(write), batch)
    assert list(errors) == [0, 1]
    assert batch.delivery.left == 2


ANSWERS: dict[str, Callable[[Any], object]] = {
    "an error beyond the end": lambda batch: WriteResult(3, errors={8: ERROR}),
    "an error below zero": lambda batch: WriteResult(3, errors={-1: ERROR}),
    "an error of a boolean": lambda batch: WriteResult(3, errors={True: ERROR}),
    "an error of a string": lambda batch: new_result(3, errors={"1": ERROR}),
    "an error that is a string": lambda batch: new_result(3, errors={1: "no"}),
    "an error that is a class": lambda batch: new_result(3, errors={1: ValueError}),
    "an error that is none": lambda batch: new_result(3, errors={1: None}),
    "errors in a list": lambda batch: new_result(3, errors=[ERROR]),
    "errors that cannot be read": lambda batch: new_result(3, errors=Evil()),
    "an outcome beyond the end": lambda batch: WriteResult(3, outcomes={3: Outcome.DUPLICATE}),
    "an outcome below zero": lambda batch: WriteResult(3, outcomes={-1: Outcome.DUPLICATE}),
    "an outcome that is a failure": lambda batch: WriteResult(3, outcomes={1: Outcome.REJECTED}),
    "an outcome that is a string": lambda batch: new_result(3, outcomes={1: "duplicate"}),
    "an error and an outcome of one item": lambda batch: WriteResult(
        3, errors={1: ERROR}, outcomes={1: Outcome.DUPLICATE}
    ),
    "a detail beyond the end": lambda batch: WriteResult(3, details={3: "row"}),
    "details in a list": lambda batch: new_result(3, details=["row"]),
    "a size that is a string": lambda batch: new_result("3"),
    "a size that is none": lambda batch: new_result(None),
    "another batch's size": lambda batch: WriteResult(2),
    "another batch's result": lambda batch: WriteResult.failed(_sealed("xyz"), {1: ERROR}),
    "another batch's outcomes": lambda batch: WriteResult.from_outcomes(_sealed("xyz"), [None] * 3),
    "failed with a boolean": lambda batch: WriteResult.failed(batch, {True: ERROR}),
    "failed with a string": lambda batch: new_result.failed(batch, {1: "no"}),
    "failed with a list": lambda batch: new_result.failed(batch, [ERROR]),
    "outcomes that cannot be counted": lambda batch: new_result.from_outcomes(batch, None),
    "outcomes without end": lambda batch: WriteResult.from_outcomes(batch, itertools.repeat(None)),
}


def _sealed(items: str) -> RowBatch[str]:
    """A batch as sealed by a batcher."""
    from sluicegate._core.batch import Lineage

    return RowBatch(items, lineage=Lineage(sealed_at=1.0))


class _Sink:
    def __init__(self, function: Callable[[Batch[Any]], Any]) -> None:
        self.function = function
        self.calls = 0

    async def write(self, batch: Batch[Any]) -> Any:
        self.calls += 1
        return await self.function(batch)


def _sink(function: Callable[[Batch[Any]], Any]) -> _Sink:
    return _Sink(function)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_a_result_that_does_not_fit_leaves_every_item_unknown(
    fake_clock: FakeClock, answer: Callable[[Batch[Any]], object]
) -> None:
    """The whole result is ignored, including the part that would fit."""

    async def write(batch: Batch[Any]) -> Any:
        return answer(batch)

    batch = RowBatch("abc")
    sink = _sink(write)
    errors = await send(Retry(backoff=Backoff())(sink), batch)
    assert list(errors) == [0, 1, 2]
    assert {type(error) for error in errors.values()} == {ResultMismatch}
    assert batch.delivery.left == 3
    assert sink.calls == 1


async def test_a_result_is_read_once(fake_clock: FakeClock) -> None:
    """A mapping that changes between reads is read only once."""

    class Fickle(dict[int, BaseException]):
        def __contains__(self, key: object) -> bool:
            return False

        def __getitem__(self, key: int) -> BaseException:
            raise KeyError(key)

    async def write(batch: Batch[Any]) -> WriteResult:
        return WriteResult(len(batch), errors=Fickle({1: ERROR}))

    batch = RowBatch("abc")
    assert await send(_sink(write), batch) == {1: ERROR}
    assert batch.delivery.left == 1


async def test_a_result_may_be_answered_for_what_was_made_of_its_batch(
    fake_clock: FakeClock,
) -> None:
    """A custom decorator may pass on the inner result, also for a batch of other items."""

    async def inner(batch: Batch[Any]) -> WriteResult:
        return WriteResult.failed(batch, {1: ERROR})

    for make in (
        lambda batch: batch.derive("xyz", [(0,), (1,), (2,)]),
        lambda batch: RowBatch("xyz"),
    ):

        async def write(
            batch: Batch[Any], make: Callable[[Batch[Any]], Batch[Any]] = make
        ) -> WriteResult:
            return await inner(make(batch))

        assert list(await send(_sink(write), _sealed("abc"))) == [1]


async def test_indices_of_any_whole_number_fit(fake_clock: FakeClock) -> None:
    """Iterators, tuples, ranges with steps, read-only mappings, and objects with `__index__`."""

    class Whole:
        def __init__(self, value: int) -> None:
            self.value = value

        def __index__(self) -> int:
            return self.value

    batch = RowBatch("abcdefg")
    whole: Any = Whole
    batch.settle(iter([0]), Outcome.DELIVERED)
    batch.settle((1,), Outcome.DELIVERED, MappingProxyType({1: "row"}))
    batch.settle(range(6, 1, -2), Outcome.DUPLICATE)
    batch.settle([whole(3), whole(5)], Outcome.DELIVERED)
    batch.settle([], Outcome.DELIVERED)
    batch.settle(range(9, 9), Outcome.DELIVERED)
    assert batch.delivery.left == 0
    assert batch.delivery.states.contradictions == 0


def test_a_batch_is_picked_from_by_indices_of_its_own_each_once() -> None:
    """Repeated items would be counted twice."""
    batch = RowBatch("abc")
    with pytest.raises(ValueError, match=r"pick\(\[0, 0\]\): an index is repeated"):
        batch.pick([0, 0])
    with pytest.raises(IndexError, match="this batch has 3 items"):
        batch.hold([-1])
    with pytest.raises(IndexError, match="this batch has 3 items"):
        batch.hold([3])
