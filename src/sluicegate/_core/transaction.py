"""Writes that commit together, once.

1. `transaction(sink, unit)` is the only entry point. It commits on normal exit, and rolls back on
   an exception or cancellation.
2. A `Unit` names the rows that commit together. Its name is stored in the same transaction, in the
   destination's *ledger*, so a second attempt finds the commit of the first; a concurrent one waits
   for the end of the first. Its writes are then `duplicate`: nothing is written twice, whether or
   not the caller has checked.
3. The result of a write inside holds if the transaction commits; after a rollback its items are
   unsettled again. A refused item is refused alone: its neighbours stay in.
4. When the transaction itself is gone (its connection broke, it has ended), every write and the
   commit raise `TransactionLost`: none of it was applied, and no retry inside it can succeed.
5. Sinks around the destination wrap the transaction too, with the state they have outside
   (`enlist`). A sink that cannot do this gives the reason in `refuses_transaction`;
   `check_transactional` raises it before anything is started.
6. A `PositionUnit` (`positions.py`) is the other kind of unit: its rows commit together with a
   source's position. A destination may take one kind only.
7. Dead letters are held until the commit and written after it. The ledger stores their number, so
   that a loss in between is detected.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, runtime_checkable
from weakref import WeakSet

from . import checks
from .checks import bad
from .delivery.delivery import HoldingSink
from .errors import NonDeterministicReplay, TransactionLost, UnitRefused
from .outcome import Outcome
from .positions import PositionUnit, check_keeps_positions
from .public import publish
from .send import send
from .sink import (
    RefusesPositions,
    RefusesTransaction,
    RefusesUnits,
    Sink,
    WriteResult,
    capabilities_of,
    classifier_of,
    inner_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from .batch import Batch
    from .delivery.delivery import Delivery
    from .errors import ErrorClass
    from .sink import Capabilities


T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

logger = logging.getLogger("sluicegate.transaction")

_LETTERS_LOST = (
    "unit %s was committed before, but %d of its dead letters were perhaps never written, and are "
    "not written now"
)
_OTHER_COLUMNS = (
    "unit %s was committed with other columns (%s) than it has now (%s), so only the numbers of "
    "rows are compared"
)
_OTHER_ROWS = "the same name now has other rows than before, so some of them would be lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The name of rows that commit together, exactly once. Raises `ConfigError` for a bad value.

    Exactly-once requires the same rows under the same name: divide rows into parts by their content
    (a hash of the key), never by the end of a partition.
    """

    application: str
    """The name of a job or a streaming query; unchanged after a restart."""
    version: int
    """The round of the application: a batch id, an epoch. It increases with each round."""
    part: int = 0
    """The part of the round, counted from 0."""
    parts: int = 1
    """The number of parts. It is fixed for a version: other parts have other rows."""
    rule: str = ""
    """The rule that divides rows into parts, as text. It too is fixed for a version."""
    types: str = ""
    """The types of the rule's columns, as text; empty if unknown, and then not compared.

    Different types are also refused: equal values of two types may belong to different parts.
    """

    def __post_init__(self) -> None:
        checks.text("application", self.application)
        checks.count("version", self.version, least=0)
        checks.count("parts", self.parts)
        if checks.count("part", self.part, least=0) >= self.parts:
            raise bad("part", self.part, f"must be less than parts={self.parts}")
        checks.text("rule", self.rule, empty=True)
        checks.text("types", self.types, empty=True)

    @property
    def name(self) -> str:
        """`application:version:part`: for batch ids, idempotency keys and transactional ids."""
        return f"{self.application}:{self.version}:{self.part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The outcomes of a unit's rows, as stored in the ledger."""

    rows: int = 0
    """Number of rows read. A replay must read the same number."""
    delivered: int = 0
    duplicate: int = 0
    dead_lettered: int = 0
    failed: int = 0
    content: int | None = None
    """Sum of the rows' hashes, as a signed 64-bit number; equal in a replay. `None` if unknown."""
    content_of: str = ""
    """The hashed columns and their types, as text. Sums of different columns are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A committed unit."""

    counts: Counts = field(default_factory=Counts)
    letters_held: int = 0
    """The number of its dead letters that are not recorded as written."""


class Transaction(Sink[T_contra], Protocol[T_contra]):
    """A sink whose writes commit together, returned by `async with transaction(sink, unit)`."""

    @property
    def unit(self) -> Unit | PositionUnit | None:
        """The unit of this transaction."""

    @property
    def committed(self) -> Committed | None:
        """An earlier attempt's commit of this unit, or `None`; after the exit, this commit."""

    @property
    def history(self) -> str:
        """The identity of the destination's write history, as text; empty if it has none.

        A value that differs from an earlier transaction's means that another server took over,
        which may lack rows committed before.
        """
        ...

    def record(self, counts: Counts) -> None:
        """Store `counts` with the commit; a later call replaces an earlier one.

        Raises `NonDeterministicReplay` if the unit had different rows before. Rows are compared by
        number, and by content if it is known for both.
        """

    def hold_letters(self, count: int) -> None:
        """Add `count` to the number of dead letters that wait for the commit. Called by sinks that
        hold dead letters back.
        """

    async def wrote_letters(self, count: int) -> None:
        """Record, after the commit, the number of held letters that are written. Suspends."""


@runtime_checkable
class TransactionalSink(Protocol):
    """A sink whose writes can commit together. Use it with `sluicegate.transaction(sink, unit)`."""

    def transaction(
        self, unit: Unit | PositionUnit | None
    ) -> AbstractAsyncContextManager[Transaction[Any]]:
        """Enter a sink whose writes commit on exit, and are rolled back after an exception."""
        ...


def transaction_of(
    sink: Sink[T], unit: Unit | PositionUnit | None
) -> AbstractAsyncContextManager[Transaction[T]]:
    """A sink's own transaction, for the sinks around it. Outcomes of its writes are not held."""
    return cast("TransactionalSink", sink).transaction(unit)


def check_transactional(sink: object) -> None:
    """Raise `ConfigError`, with the reason, if a part of the stack cannot write in a transaction.

    The sink need not be open. Does not suspend.
    """
    check_parts(sink, positions=False)


def check_parts(sink: object, *, positions: bool) -> None:
    """With `positions` for transactions with the position of a source, otherwise for units."""
    part = sink
    while True:
        if (reason := _refusal(part, positions=positions)) is not None:
            raise bad("sink", part, f"cannot write in a transaction: {reason}")
        if not isinstance(part, TransactionalSink):
            rule = "cannot write in a transaction: it has no `transaction(unit)`"
            raise bad("sink", part, f"{rule}; use a destination that has, or do without")
        if (inner := inner_of(part)) is None:
            break
        part = inner
    if positions:
        check_keeps_positions(part)


def _refusal(part: object, *, positions: bool) -> str | None:
    if isinstance(part, RefusesTransaction):
        return part.refuses_transaction
    if positions:
        return part.refuses_positions if isinstance(part, RefusesPositions) else None
    return part.refuses_units if isinstance(part, RefusesUnits) else None


class Attempt:
    """Base class of the destinations' transactions: everything except the writes."""

    def __init__(self, unit: Unit | PositionUnit | None) -> None:
        self._unit = unit
        self._committed: Committed | None = None
        self._found = False
        self.history = ""
        self.counts = Counts()
        self.letters_held = 0

    def found(self, committed: Committed | None) -> None:
        """Record the commit of an earlier attempt, if any."""
        self._committed = committed
        self._found = committed is not None
        if self._unit is not None and committed is not None and committed.letters_held:
            logger.error(_LETTERS_LOST, self._unit.name, committed.letters_held)

    @property
    def unit(self) -> Unit | PositionUnit | None:
        return self._unit

    @property
    def committed(self) -> Committed | None:
        return self._committed

    @property
    def is_replay(self) -> bool:
        """Whether the unit was committed before this attempt began."""
        return self._found

    def record(self, counts: Counts) -> None:
        """Store `counts` with the commit; compare them with those of an earlier attempt."""
        if self._found and isinstance(self._unit, Unit) and self._committed is not None:
            check_same_rows(self._unit, self._committed.counts, counts)
        self.counts = counts

    def hold_letters(self, count: int) -> None:
        self.letters_held += count

    def commits(self) -> None:
        """Record that the transaction is committed."""
        self._committed = Committed(counts=self.counts, letters_held=self.letters_held)

    async def wrote_letters(self, count: int) -> None:
        """Subtract from the held dead letters. Override it to update the ledger."""
        if self._committed is not None:
            held = self._committed.letters_held - count
            self._committed = replace(self._committed, letters_held=held)


def all_duplicate(batch: Batch[object]) -> WriteResult:
    """Return the result of a write under a unit that was committed before."""
    return WriteResult.from_outcomes(batch, [Outcome.DUPLICATE] * len(batch))


def has_ended(unit: Unit | PositionUnit | None) -> TransactionLost:
    """Return the error of a write in a transaction that has ended."""
    name = "the transaction" if unit is None else f"the transaction of {unit.name}"
    return TransactionLost(f"{name} has ended; nothing can be written in it any more")


def check_same_parts(unit: Unit, known: Unit) -> None:
    """Raise `UnitRefused` if the committed `known` has the same version but other parts."""
    if (unit.application, unit.version) != (known.application, known.version):
        return
    has_same_types = not (unit.types and known.types) or unit.types == known.types
    if (unit.parts, unit.rule) == (known.parts, known.rule) and has_same_types:
        return
    raise UnitRefused(
        f"unit={unit.name!r}: version {unit.version} of {unit.application!r} was committed in "
        f"{known.parts} parts by the rule {known.rule!r} of {known.types!r}, and now has "
        f"{unit.parts} parts by {unit.rule!r} of {unit.types!r}; these parts have other rows, so "
        "some rows would be written twice and others never; use the old parts, rule and types "
        "until this version is complete"
    )


def check_same_rows(unit: Unit, known: Counts, counts: Counts) -> None:
    """Raise `NonDeterministicReplay` if the rows differ from the committed ones, by `known`."""
    if known.rows != counts.rows:
        raise NonDeterministicReplay(
            f"{unit} was committed with {known.rows} rows, and now has {counts.rows}: "
            f"{_OTHER_ROWS}; the source of the rows must return the same rows each time"
        )
    if known.content is None or counts.content is None or known.content == counts.content:
        return
    if known.content_of != counts.content_of:
        logger.warning(_OTHER_COLUMNS, unit.name, known.content_of, counts.content_of)
        return
    raise NonDeterministicReplay(
        f"{unit} was committed with {known.rows} rows of another content (of {known.content_of}): "
        f"{_OTHER_ROWS}. A query with a deleted or copied checkpoint counts from 0 again: give it "
        "another app_id. Or a column changes in each run, such as current_timestamp(): exclude it "
        "with content="
    )


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


def enlist(around: Callable[[Sink[T]], Sink[T]], within: Transaction[T]) -> Transaction[T]:
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
            the rows. Without one, nothing is stored in addition to the writes.

    Leaving it commits. An exception or a cancellation rolls it back, and propagates; the items are
    then unsettled again, so the same batches can be sent once more. Items
    of a batcher get their outcomes at the commit, which must come before the sink's write returns;
    otherwise they are `unknown`. Batches may be sent concurrently; the destination takes one after
    another. Pass known counts to `tx.record` before leaving.

    Suspends. Raises on entering: `ConfigError` like `check_transactional`; `UnitRefused` if the
    ledger has this version with another division into parts; `UnavailableError` if the destination
    is not reachable. Raises on leaving: `UnknownOutcomeError` if the commit may or may not have
    been applied; with a unit, the next attempt finds out. Raises on either: `TransactionLost` if
    nothing was applied.

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
    check_parts(sink, positions=isinstance(unit, PositionUnit))
    return _provisional(sink, unit)


publish("sluicegate", transaction)
publish(
    "sluicegate.sinks",
    Counts,
    Transaction,
    TransactionalSink,
    Unit,
    check_transactional,
)
