"""The conformance suite of sinks.

    class TestMySink(SinkConformance[dict]):
        def sink(self):
            return MySink("...")

        def item(self, number):
            return {"id": number}

1. Each test makes its own sinks with `sink()`, on one destination, and new items with
   `item(number)`.
2. With `stored()` the suite checks every result against the destination; without it, only the
   externally visible behaviour.
3. With `bad_item(number)` it checks the effect of a refused item on the other items.
4. Items that are rows, or that `columns(items)` converts to columns, are also sent as columns, with
   the same outcomes: Spark sends nothing else.
5. The tests run on their own loop in real time, and wait only for the sink.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import pytest

from ..._core.arrow import ArrowBatch
from ..._core.batch import RowBatch
from ..._core.errors import ConfigError, ErrorClass, UnknownOutcomeError
from ..._core.opening import opened
from ..._core.send import send
from ..._core.sink import Capabilities, WriteResult, capabilities_of
from ..._core.stacking import stack
from ..._core.transaction import check_transactional

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ..._core.batch import Batch
    from ..._core.clock import LoopClock
    from ..._core.sink import Sink, SinkLike


T = TypeVar("T")

_numbers = itertools.count(1)
ROUNDS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 144, 377, 987)
"""Rounds of the loop before a write is cancelled; after the last ones most writes have ended."""


class SinkConformance(ABC, Generic[T]):
    """The suite of every sink. Name the subclass `Test...`, and implement the hooks."""

    ordered = True
    """Whether `stored()` keeps the order in which items were written."""

    @abstractmethod
    def sink(self) -> SinkLike[T]:
        """Return a new, unopened sink; all of them have the same destination."""

    @abstractmethod
    def item(self, number: int) -> T:
        """Return an item that the destination accepts, different for every number."""

    def bad_item(self, number: int) -> T | None:
        """Return an item that the destination refuses permanently; `None` if it refuses none."""
        return None

    def columns(self, items: Sequence[T]) -> Any | None:
        """Convert items to a `pyarrow.RecordBatch`, one row each; `None` if that is not possible.

        By default, mappings are rows, and every name that occurs is a column.
        """
        if not items or not all(isinstance(item, Mapping) for item in items):
            return None
        pyarrow: Any = pytest.importorskip("pyarrow", reason="columns are made with pyarrow")
        rows = cast("Sequence[Mapping[str, Any]]", items)
        names = dict.fromkeys(name for row in rows for name in row)
        return pyarrow.record_batch({name: [row.get(name) for row in rows] for name in names})

    async def stored(self) -> Sequence[T] | None:
        """Return every stored item, equal to the sent one; `None` if not known."""
        return None

    # -- helpers for the tests ---------------------------------------------------------------------

    def items(self, count: int) -> list[T]:
        """Return new items, never sent before."""
        return [self.item(next(_numbers)) for _ in range(count)]

    @asynccontextmanager
    async def open_sink(self) -> AsyncIterator[Sink[T]]:
        """Open a sink for the duration of the context."""
        sink = stack(self.sink())
        async with opened(sink):
            yield sink

    async def copies(self, item: T) -> int | None:
        """Return the number of stored copies of an item; `None` if not known."""
        stored = await self.stored()
        return None if stored is None else [*stored].count(item)

    async def check_truth(self, batch: Batch[T], errors: dict[int, BaseException]) -> None:
        """Check that delivered items are stored, and failed ones are not or are unknown."""
        stored = await self.stored()
        if stored is None:
            return
        for index, item in enumerate(batch):
            error = errors.get(index)
            if error is None:
                assert item in stored, (
                    f"item {index} was reported as delivered, but the destination does not have it"
                )
            elif not isinstance(error, UnknownOutcomeError):
                assert item not in stored, (
                    f"item {index} failed with {error!r}, but the destination has it; raise an "
                    "UnknownOutcomeError"
                )

    def _bad_items(self, count: int) -> list[T]:
        bad = [self.bad_item(next(_numbers)) for _ in range(count)]
        if any(item is None for item in bad):
            pytest.skip("bad_item() is not implemented: the destination accepts everything")
        return cast("list[T]", bad)

    async def _check_all_there(self, items: Sequence[T], *, in_order: bool = True) -> None:
        stored = await self.stored()
        if stored is not None:
            found = [item for item in stored if item in items]
            assert sorted(map(repr, found)) == sorted(map(repr, items))
            assert not (self.ordered and in_order) or found == [*items]

    async def _check_nothing_lost(self, items: Sequence[T]) -> None:
        stored = await self.stored()
        if stored is not None:
            missing = [item for item in items if item not in stored]
            assert not missing, f"called delivered, and the destination does not have it: {missing}"

    def _column_batch(self, items: Sequence[T]) -> Batch[Any]:
        columns = self.columns(items)
        if columns is None:
            pytest.skip("columns() is not implemented, and the items are not rows")
        return ArrowBatch(columns)

    async def _send_with(
        self, sink: Sink[T], look: Callable[[Sink[T]], bytes] = lambda _: b""
    ) -> bytes:
        async with opened(sink):
            assert await send(sink, RowBatch(self.items(1))) == {}
            return look(sink)

    # -- written and refused items -----------------------------------------------------------------

    async def test_a_batch_is_written_in_order(self, real_clock: LoopClock) -> None:
        """Every item arrives once, in the batch's order."""
        items = self.items(7)
        async with self.open_sink() as sink:
            assert await send(sink, RowBatch(items)) == {}
        await self._check_all_there(items)

    async def test_the_answer_fits_the_batch(self, real_clock: LoopClock) -> None:
        """The result is `None` or a `WriteResult` of the batch's length, even for an empty
        batch.
        """
        async with self.open_sink() as sink:
            for size in (0, 1, 3):
                answer = cast("object", await sink.write(RowBatch(self.items(size))))
                assert answer is None or isinstance(answer, WriteResult), (
                    f"write returned {answer!r}; expected None or a WriteResult"
                )
                assert answer is None or answer.size == size, (
                    f"an answer for {answer.size} items to a batch of {size}"
                )

    async def test_a_batch_is_left_as_it_was(self, real_clock: LoopClock) -> None:
        """`write` changes neither the batch nor its items: the same batch may be sent again."""
        items = self.items(5)
        batch = RowBatch(items)
        before = (batch.items, batch.id, batch.write_key, tuple(map(repr, items)))
        async with self.open_sink() as sink:
            assert await send(sink, batch) == {}
            assert (batch.items, batch.id, batch.write_key, tuple(map(repr, batch))) == before

    async def test_parts_of_one_batch_are_written_each(self, real_clock: LoopClock) -> None:
        """Two picks of one batch are different writes, even with deduplication by `write_key`."""
        items = self.items(6)
        batch = RowBatch(items)
        async with self.open_sink() as sink:
            assert await send(sink, batch.pick([0, 2, 4])) == {}
            assert await send(sink, batch.pick([1, 3, 5])) == {}
        assert list(batch.unsettled()) == []
        await self._check_nothing_lost(items)

    async def test_a_refused_item_is_told_and_its_neighbours_are_told_truly(
        self, real_clock: LoopClock
    ) -> None:
        """No error is lost, and each is at the index of its item."""
        good, bad = self.items(3), self._bad_items(2)
        batch = RowBatch([good[0], bad[0], good[1], good[2], bad[1]])
        async with self.open_sink() as sink:
            errors = await send(sink, batch)
            assert {1, 4} <= set(errors), (
                f"the refused items 1 and 4 are not among the errors: {errors}"
            )
            assert set(errors) in ({1, 4}, {0, 1, 2, 3, 4}), (
                f"errors for items {sorted(errors)}; only 1 and 4, or all, make sense"
            )
            await self.check_truth(batch, errors)
            assert await send(sink, RowBatch(self.items(2))) == {}, (
                "after a refusal the sink no longer works"
            )

    async def test_a_batch_of_refused_items_fails(self, real_clock: LoopClock) -> None:
        """None of its items counts as delivered."""
        bad = self._bad_items(3)
        async with self.open_sink() as sink:
            errors = await send(sink, RowBatch(bad))
            assert set(errors) == {0, 1, 2}
            assert all(type(error) is not Exception for error in errors.values()), (
                "raise an error of a specific class"
            )

    async def test_key_prefix_safety_is_told_truly(self, real_clock: LoopClock) -> None:
        """If an item fails, no later item of its key in that write has taken effect."""
        async with self.open_sink() as sink:
            if not capabilities_of(sink).key_prefix_safe:
                pytest.skip("the sink does not promise it")
            (bad,) = self._bad_items(1)
            first, later = self.items(2)
            errors = await send(sink, RowBatch([first, bad, later], keys=["k", "k", "k"]))
            assert {1, 2} <= set(errors)
            assert await self.copies(later) in {None, 0}, (
                "a later item of the refused item's key took effect"
            )

    # -- columns, which must have the outcomes of rows ---------------------------------------------

    async def test_columns_are_written_as_rows_are(self, real_clock: LoopClock) -> None:
        """Every row arrives once, in the batch's order."""
        items = self.items(7)
        async with self.open_sink() as sink:
            assert await send(sink, self._column_batch(items)) == {}
        await self._check_all_there(items)

    async def test_parts_of_columns_are_written_each(self, real_clock: LoopClock) -> None:
        """A pick of a batch contains only the picked rows."""
        items = self.items(6)
        batch = self._column_batch(items)
        async with self.open_sink() as sink:
            for part in ([0, 2, 4], [1, 3, 5]):
                assert await send(sink, batch.pick(part)) == {}
                rest = [
                    index
                    for index in range(6)
                    if index not in part and not batch.delivery.is_settled(index)
                ]
                for index in rest:
                    assert await self.copies(items[index]) in {None, 0}, (
                        f"row {index} was not in the part, and the destination has it"
                    )
        await self._check_all_there(items, in_order=False)

    async def test_a_refused_row_of_columns_is_told_by_its_index(
        self, real_clock: LoopClock
    ) -> None:
        """The error is that of a refused item, and the results of other rows are correct."""
        good, bad = self.items(3), self._bad_items(2)
        items = [good[0], bad[0], good[1], good[2], bad[1]]
        batch = self._column_batch(items)
        async with self.open_sink() as sink:
            errors = await send(sink, batch)
            assert set(errors) in ({1, 4}, {0, 1, 2, 3, 4}), (
                f"errors for rows {sorted(errors)}; only 1 and 4, or all, make sense"
            )
            by_rows = await send(sink, RowBatch([*self.items(1), *self._bad_items(1)]))
            assert type(errors[1]) is type(by_rows[1]), (
                f"{errors[1]!r} for a row of columns, and {by_rows[1]!r} for an item"
            )
            await self.check_truth(RowBatch(items), errors)

    async def test_columns_without_rows_are_no_error(self, real_clock: LoopClock) -> None:
        """A batch without rows writes nothing."""
        batch = self._column_batch(self.items(1))
        async with self.open_sink() as sink:
            answer = cast("object", await sink.write(batch.pick([])))
            assert answer is None or (isinstance(answer, WriteResult) and answer.size == 0)

    # -- cancelled, timed-out and concurrent writes ------------------------------------------------

    async def test_a_cancelled_write_ends_and_leaves_the_sink_usable(
        self, real_clock: LoopClock
    ) -> None:
        """Cancellation passes through at any moment, and items delivered by then are stored."""
        async with self.open_sink() as sink:
            for rounds in ROUNDS:
                batch = RowBatch(self.items(4))
                write = asyncio.get_running_loop().create_task(send(sink, batch))
                for _ in range(rounds):
                    await real_clock.sleep(0)
                write.cancel()
                ended, _ = await asyncio.wait([write], timeout=30.0)
                assert ended, "the write did not end within 30 s of its cancellation"
                delivered = [batch[index] for index in range(4) if batch.delivery.is_settled(index)]
                await self._check_nothing_lost(delivered)
                again = await send(sink, batch)
                await self._check_nothing_lost(
                    [item for index, item in enumerate(batch) if index not in again]
                )
                assert await send(sink, RowBatch(self.items(1))) == {}, (
                    f"after a cancellation ({rounds} turns) the sink no longer works"
                )

    async def test_a_try_that_is_timed_out_tells_the_truth(self, real_clock: LoopClock) -> None:
        """Every item reported as delivered is stored, even if a timeout has cut off the write."""
        async with self.open_sink() as sink:
            for seconds in (1e-6, 1e-4, 1e-3):
                batch = RowBatch(self.items(4))
                try:
                    async with real_clock.timeout_at(real_clock.now() + seconds):
                        await send(sink, batch)
                except TimeoutError:
                    pass
                await self._check_nothing_lost(
                    [batch[index] for index in range(4) if batch.delivery.is_settled(index)]
                )
                again = await send(sink, batch)
                await self._check_nothing_lost(
                    [item for index, item in enumerate(batch) if index not in again]
                )

    async def test_writes_beside_each_other(self, real_clock: LoopClock) -> None:
        """The sink handles its maximum number of concurrent writes (four if it has no limit)."""
        async with self.open_sink() as sink:
            most = capabilities_of(sink).max_concurrency or 4
            batches = [RowBatch(self.items(5)) for _ in range(min(most, 16))]
            answers = await asyncio.gather(*(send(sink, batch) for batch in batches))
        assert answers == [{}] * len(batches)
        await self._check_nothing_lost([item for batch in batches for item in batch])

    # -- opening, closing and pickling -------------------------------------------------------------

    async def test_opening_is_counted_and_comes_again(self, real_clock: LoopClock) -> None:
        """Only the last exit closes it, so stacks may share a sink; it reopens, and leaves no task."""
        sink = stack(self.sink())
        before = asyncio.all_tasks()
        for _ in range(2):
            async with opened(sink):
                async with opened(sink):
                    assert await send(sink, RowBatch(self.items(1))) == {}
                assert await send(sink, RowBatch(self.items(1))) == {}, (
                    "the inner of two entries has closed the sink"
                )
        await real_clock.sleep(0)
        assert asyncio.all_tasks() <= before, "the closed sink has left tasks behind"

    def test_it_opens_on_another_loop_when_the_first_has_ended(self) -> None:
        """One object works in two calls of `asyncio.run`."""
        sink = stack(self.sink())
        for _ in range(2):
            asyncio.run(self._send_with(sink))

    def test_the_description_travels(self) -> None:
        """An open or closed sink can be pickled; the copy is closed and works."""
        cloudpickle = pytest.importorskip(
            "cloudpickle", reason="pickling is tried with cloudpickle"
        )
        sink = stack(self.sink())
        asyncio.run(self._send_with(pickle.loads(cloudpickle.dumps(sink))))  # noqa: S301  # pickled here
        while_open = asyncio.run(self._send_with(sink, cloudpickle.dumps))
        asyncio.run(self._send_with(pickle.loads(while_open)))  # noqa: S301  # our own

    # -- declarations ------------------------------------------------------------------------------

    async def test_its_capabilities_are_true(self, real_clock: LoopClock) -> None:
        """`capabilities` is a `Capabilities`, and `idempotent` and `transactional` are true if set."""
        async with self.open_sink() as sink:
            told = getattr(sink, "capabilities", Capabilities())
            assert isinstance(told, Capabilities), (
                f"capabilities is {told!r}; expected a Capabilities(...)"
            )
            assert told.transactional == _can_have_a_transaction(sink), (
                "`transactional` requires a method `transaction(unit)`, and vice versa"
            )
            if told.idempotent:
                items = self.items(3)
                for _ in range(2):
                    assert await send(sink, RowBatch(items)) == {}
                assert await self.copies(items[0]) in {None, 1}, (
                    "the sink claims to be idempotent, and stored the same item twice"
                )

    def test_it_classifies_without_raising(self) -> None:
        """`classify` returns an `ErrorClass`, or `None` for an unknown error."""
        classifier: Any = getattr(stack(self.sink()), "classify", None)
        if classifier is not None:
            for error in (KeyError("k"), OSError(5, "io"), TimeoutError(), ConnectionResetError()):
                assert classifier(error) is None or isinstance(classifier(error), ErrorClass)


def _can_have_a_transaction(sink: object) -> bool:
    try:
        check_transactional(sink)
    except ConfigError:
        return False
    return True
