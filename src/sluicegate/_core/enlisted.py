"""Transactions inside the sinks around their destination, and as `transaction` returns them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakSet

from .delivery.held import HoldingSink
from .errors import TransactionLost
from .positions import PositionUnit
from .public import publish
from .result import WriteResult
from .send import send
from .sink import capabilities_of, classifier_of
from .transaction import check_transactional, transaction_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from .batch import Batch
    from .delivery.delivery import Delivery
    from .errors import ErrorClass
    from .sink import Capabilities, Sink
    from .transaction import Committed, Counts, Transaction, Unit

T = TypeVar("T")


class _Enlisted(Generic[T]):
    """A transaction wrapped in the sinks around its destination."""

    def __init__(self, sink: Sink[T], within: Transaction[T]) -> None:
        self.inner = sink
        self.within = within

    @property
    def unit(self) -> Unit | PositionUnit | None:
        return self.within.unit

    @property
    def committed(self) -> Committed | None:
        return self.within.committed

    @property
    def history(self) -> str:
        return self.within.history

    @property
    def capabilities(self) -> Capabilities:
        return capabilities_of(self.inner)

    def record(self, counts: Counts) -> None:
        self.within.record(counts)

    def hold_letters(self, count: int) -> None:
        self.within.hold_letters(count)

    async def wrote_letters(self, count: int) -> None:
        await self.within.wrote_letters(count)

    def classify(self, error: BaseException) -> ErrorClass | None:
        classifier = classifier_of(self.inner)
        return None if classifier is None else classifier(error)

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        return await _sent(self.inner, batch)

    def __repr__(self) -> str:
        return f"Transaction({self.unit}, {self.inner!r})"


def enlisted(around: Callable[[Sink[T]], Sink[T]], within: Transaction[T]) -> Transaction[T]:
    """The transaction with one more sink, made by `around`, around its writes."""
    if isinstance(within, _Enlisted):
        return _Enlisted(around(within.inner), within.within)
    return _Enlisted(around(within), within)


class _Provisional(_Enlisted[T], HoldingSink):
    """The transaction returned by `transaction`: holds the outcomes of its writes until it ends."""

    def __init__(self, within: Transaction[T], destination: Sink[T]) -> None:
        super().__init__(within, within)
        self.destination = destination
        self._deliveries: WeakSet[Delivery] = WeakSet()  # of the batches that still exist

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        delivery = batch.delivery
        if not delivery.closed:
            delivery.hold_outcomes(self)
            self._deliveries.add(delivery)
        return await _sent(self.inner, batch)

    def end(self, *, is_committed: bool, doubtful: bool) -> None:
        """Book the outcomes after a commit, or make the items unsettled."""
        for delivery in self._deliveries:
            delivery.end_hold(is_committed=is_committed, doubtful=doubtful)


async def _sent(sink: Sink[T], batch: Batch[T]) -> WriteResult | None:
    errors = await send(sink, batch)
    return WriteResult.failed(batch, errors) if errors else None


@asynccontextmanager
async def _provisional(
    sink: Sink[T], unit: Unit | PositionUnit | None
) -> AsyncGenerator[Transaction[T]]:
    """Hold outcomes until the end of this transaction. Suspends and raises as that."""
    made: _Provisional[T] | None = None
    is_committed = is_leaving = False
    try:
        async with transaction_of(sink, unit) as within:
            made = _Provisional(within, sink)
            yield made
            is_leaving = True
        is_committed = True
    except TransactionLost:
        is_leaving = False  # nothing was applied
        raise
    finally:
        if made is not None:
            is_committed = is_committed or made.committed is not None
            made.end(is_committed=is_committed, doubtful=is_leaving)


def transaction(
    sink: Sink[T], unit: Unit | PositionUnit | None = None
) -> AbstractAsyncContextManager[Transaction[T]]:
    """Commit all writes inside together, once per unit.

    `async with transaction(sink, unit) as tx:`, and in it `await send(tx, batch)` for each batch.

    Args:
        sink: an open stack that passes `check_transactional`.
        unit: the name under which it commits once, or the position of a source that commits with
            the rows. Without one nothing is stored beside the writes.

    Leaving it commits. Left by an exception or cancelled it is rolled back, and that exception
    propagates; the items are unsettled again then, so the same batches can be sent once more. Items
    of a batcher get their outcomes at the commit, which must come before the sink's write returns;
    otherwise they are `unknown`. Batches may be sent side by side; the destination takes one after
    another. Pass known counts to `tx.record` before leaving.

    Raises, on entering: `ConfigError` as `check_transactional` does; `UnitRefused` where the ledger
    has the version cut otherwise; `UnavailableError` where the destination is not reachable. On
    leaving: `UnknownOutcomeError` where the commit may or may not have been applied; with a unit
    the next attempt finds out. At either end: `TransactionLost` where nothing was. Suspends.

    Examples:
        >>> import asyncio
        >>> from sluicegate import RowBatch, send, transaction
        >>> from sluicegate.sinks import MemorySink
        >>> sink, batches = MemorySink(), [RowBatch("ab"), RowBatch("c")]
        >>> async def main():
        ...     async with transaction(sink) as tx:
        ...         for batch in batches:
        ...             await send(tx, batch)
        ...         print(sink.items)
        ...     print(sink.items)
        >>> asyncio.run(main())
        []
        ['a', 'b', 'c']
    """
    check_transactional(sink, positions=isinstance(unit, PositionUnit))
    return _provisional(sink, unit)


publish("sluicegate", transaction)
