"""Writes that commit together, once.

1. `transaction(sink, unit)` is the only entrance. Left normally it commits, left by an exception or
   cancelled it rolls back.
2. A `Unit` names the rows that commit together. Its name is stored in the same transaction, in the
   destination's *ledger*, so a second attempt finds the commit of the first; a concurrent one waits
   for the end of the first. Its writes are then `duplicate`: nothing is written twice, whether or
   not the caller has checked.
3. An answer to a write inside holds if the transaction commits; after a rollback its items are
   unsettled again (`enlisted.py`). A refused item is refused alone: its neighbours stay in.
4. When the transaction itself is gone (its connection broke, it has ended), every write and the
   commit raise `TransactionLost`: nothing of it was applied, and no retry inside it can succeed.
5. Sinks around the destination wrap the transaction too, with the state they have outside
   (`enlisted`). One that cannot gives its reason in `refuses_transaction`, which
   `check_transactional` raises before anything has been started.
6. A `PositionUnit` (`positions.py`) is the other kind of unit: its rows commit together with a
   source's position. A destination may take one kind only.
7. Dead letters are held until the commit and written after it. The ledger stores how many are held,
   so a loss in between is detected.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from . import checks
from .checks import bad
from .errors import NonDeterministicReplay, TransactionLost, UnitRefused
from .outcome import Outcome
from .positions import PositionUnit, check_keeps_positions
from .public import publish
from .result import WriteResult
from .sink import (
    RefusesPositions,
    RefusesTransaction,
    RefusesUnits,
    Sink,
    inner_of,
)

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from .batch import Batch

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

logger = logging.getLogger("penstock.transaction")

_LETTERS_LOST = (
    "unit %s was committed before, but %d of its dead letters were perhaps never written, and are "
    "not written now"
)
_OTHER_COLUMNS = (
    "unit %s was committed with other columns (%s) than it has now (%s), so only the numbers of "
    "rows are compared"
)
_OTHER_ROWS = "other rows than before come under the same name, so some of them would be lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The name of rows that commit together, once. Raises `ConfigError` for a bad value.

    Exactly once needs the same rows under the same name: cut the parts by the rows' content (a hash
    of their key), never by a partition's end.
    """

    application: str
    """The name of a job or a streaming query, the same after a restart."""
    version: int
    """The round of the application: a batch id, an epoch. Later ones are larger."""
    part: int = 0
    """The part of the round, counted from 0."""
    parts: int = 1
    """The number of parts. Another one for the same version is refused: it cuts other rows."""
    rule: str = ""
    """The rule that cuts the parts, as text. Another one for the same version is refused too."""
    types: str = ""
    """The types of the rule's columns, as text; empty if unknown, and not compared.

    Others are refused too: equal values of two types may fall into different parts.
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
    """Rows that were read. A replay must read as many."""
    delivered: int = 0
    duplicate: int = 0
    dead_lettered: int = 0
    failed: int = 0
    content: int | None = None
    """The sum of the rows' hashes, as a signed 64-bit number, equal in a replay; `None`: unknown."""
    content_of: str = ""
    """The hashed columns and their types, as text. Sums of different columns are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A committed unit."""

    counts: Counts = field(default_factory=Counts)
    letters_held: int = 0
    """Its dead letters that were not recorded as written."""


class Transaction(Sink[T_contra], Protocol[T_contra]):
    """A sink whose writes commit together, returned by `async with transaction(sink, unit)`."""

    @property
    def unit(self) -> Unit | PositionUnit | None:
        """The unit of this transaction."""

    @property
    def committed(self) -> Committed | None:
        """Inside, an earlier attempt's commit of this unit, or `None`. Afterwards, this commit."""

    @property
    def history(self) -> str:
        """The identity of the destination's write history, as text; empty if it has none.

        A change from an earlier transaction means that another server took over, which may lack
        rows committed there.
        """
        ...

    def record(self, counts: Counts) -> None:
        """Store `counts` with the commit; the last call counts.

        Raises `NonDeterministicReplay` if the unit had other rows before, compared by their number,
        and by their content where that is known on both sides.
        """

    def hold_letters(self, count: int) -> None:
        """Add to the dead letters held until the commit. For sinks that hold them."""

    async def wrote_letters(self, count: int) -> None:
        """Record, after the commit, how many held letters are written. Raises and suspends."""


@runtime_checkable
class TransactionalSink(Protocol):
    """A sink whose writes can commit together. Enter it by `penstock.transaction(sink, unit)`."""

    def transaction(
        self, unit: Unit | PositionUnit | None
    ) -> AbstractAsyncContextManager[Transaction[Any]]:
        """A sink whose writes commit when the context ends, and not if it ends by an exception."""
        ...


def transaction_of(
    sink: Sink[T], unit: Unit | PositionUnit | None
) -> AbstractAsyncContextManager[Transaction[T]]:
    """A sink's own transaction, for the sinks around it. Outcomes of its writes are not held."""
    return cast("TransactionalSink", sink).transaction(unit)


def check_transactional(sink: object, *, positions: bool = False) -> None:
    """Raise `ConfigError` for a part of the stack that cannot write in a transaction, and why.

    With `positions`, for transactions with the position of a source, otherwise for those of units.
    Needs no open sink. Does not suspend.
    """
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
    """Base of the destinations' transactions: everything but the writes."""

    def __init__(self, unit: Unit | PositionUnit | None) -> None:
        self._unit = unit
        self._committed: Committed | None = None
        self._found = False
        self.history = ""
        self.counts = Counts()
        self.letters_held = 0

    def found(self, committed: Committed | None) -> None:
        """Note the commit of an earlier attempt, if any."""
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
        """Note that the transaction is committed."""
        self._committed = Committed(counts=self.counts, letters_held=self.letters_held)

    async def wrote_letters(self, count: int) -> None:
        """Subtract from the held dead letters. Override it to update the ledger."""
        if self._committed is not None:
            held = self._committed.letters_held - count
            self._committed = replace(self._committed, letters_held=held)


def all_duplicate(batch: Batch[object]) -> WriteResult:
    """The answer to a write under a unit that was committed before."""
    return WriteResult.from_outcomes(batch, [Outcome.DUPLICATE] * len(batch))


def has_ended(unit: Unit | PositionUnit | None) -> TransactionLost:
    """The error of a write in a transaction that is over."""
    name = "the transaction" if unit is None else f"the transaction of {unit.name}"
    return TransactionLost(f"{name} has ended; nothing can be written in it any more")


def check_same_parts(unit: Unit, known: Unit) -> None:
    """Raise `UnitRefused` if the committed `known` is of the same version and cut otherwise."""
    if (unit.application, unit.version) != (known.application, known.version):
        return
    this = f"unit={unit.name!r}: version {unit.version} of {unit.application!r} was committed in"
    if (unit.parts, unit.rule) != (known.parts, known.rule):
        raise UnitRefused(
            f"{this} {known.parts} parts by the rule {known.rule!r}, and now comes in {unit.parts} "
            f"by {unit.rule!r}; other parts hold other rows, so some would be written twice and "
            "others never; go on with the old ones until this version is complete"
        )
    if unit.types and known.types and unit.types != known.types:
        raise UnitRefused(
            f"{this} parts by {unit.rule!r} of {known.types!r}, and now comes by that of "
            f"{unit.types!r}; equal values of other types fall into other parts, so some rows would "
            "be written twice and others never; go on with the old types until this version is "
            "complete"
        )


def check_same_rows(unit: Unit, known: Counts, counts: Counts) -> None:
    """Raise `NonDeterministicReplay` if the rows differ from the committed ones, by `known`."""
    if known.rows != counts.rows:
        raise NonDeterministicReplay(
            f"{unit} was committed with {known.rows} rows, and now has {counts.rows}: "
            f"{_OTHER_ROWS}; what makes the rows must give the same ones each time"
        )
    if known.content is None or counts.content is None or known.content == counts.content:
        return
    if known.content_of != counts.content_of:
        logger.warning(_OTHER_COLUMNS, unit.name, known.content_of, counts.content_of)
        return
    raise NonDeterministicReplay(
        f"{unit} was committed with {known.rows} rows of another content (of {known.content_of}): "
        f"{_OTHER_ROWS}. A query with a deleted or copied checkpoint counts from 0 again: give it "
        "another app_id. Or a column is made anew in each run, such as current_timestamp(): leave "
        "it out with content="
    )


publish(
    "penstock",
    Committed,
    Counts,
    Transaction,
    TransactionalSink,
    Unit,
    check_transactional,
)
