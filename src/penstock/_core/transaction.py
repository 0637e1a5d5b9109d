"""Writes that commit together, once.

1. `transaction(sink, unit)` is how everybody enters one. Left normally it commits, left by an
   exception or cancelled it rolls back.
2. A `Unit` names what commits together. Its name is stored in the same transaction, in the
   destination's *ledger*, so that a second attempt finds that the first has committed; one that
   comes while the first is under way waits for its end. What is written then is a `duplicate`:
   nothing is written twice, whether or not the caller has looked.
3. What a write answers inside holds if the transaction commits. An item that was refused is refused
   alone: its neighbours stay in.
4. When the transaction itself is gone (its connection broke, it has ended), every write and the
   commit raise `TransactionLost`: nothing of it was applied, and nothing that is tried again inside
   of it can be.
5. Sinks around the destination stand around the transaction too, with the state they have outside
   (`enlisted`). One that cannot names its reason in `refuses_transaction`, and
   `check_transactional` tells it before anything has been started.
6. Dead letters are held until the commit and written after it. The ledger knows how many are held,
   so what was lost in between is seen.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from . import checks
from .checks import bad
from .errors import NonDeterministicReplay, TransactionLost, UnitRefused
from .outcome import Outcome
from .result import WriteResult
from .send import send
from .sink import RefusesTransaction, Sink, capabilities_of, classifier_of, inner_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from .batch import Batch
    from .errors import ErrorClass
    from .sink import Capabilities

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

logger = logging.getLogger("penstock.transaction")

_LETTERS_LOST = (
    "unit %s was committed before, but %d of its dead letters were perhaps never "
    "written, and are not written now"
)
_OTHER_COLUMNS = (
    "unit %s was committed with other columns (%s) than it has now (%s), so only "
    "the numbers of rows are compared"
)
_OTHER_ROWS = "other rows than before come under the same name, so some of them would be lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What commits together, once. Raises `ConfigError` for a bad value.

    Exactly once needs the same rows under the same name: cut the parts by the rows' content (a hash
    of their key), never by where a partition happens to end.
    """

    application: str
    """The name of a job or a streaming query, the same after a restart."""
    version: int
    """Which round of the application: a batch id, an epoch. Later ones are larger."""
    part: int = 0
    """Which part of the round, counted from 0."""
    parts: int = 1
    """Of how many. Another number under the same application and version is refused: its parts
    would hold other rows.
    """
    rule: str = ""
    """How the parts are cut, as text. Another rule under the same version is refused as well."""
    types: str = ""
    """The types of what the rule looks at, as text. Others are refused too: equal values of two
    types may fall into different parts. Empty: not known, and not compared.
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
        """`application:version:part`: for ids of batches, idempotency keys and transactional ids of
        destinations without a ledger.
        """
        return f"{self.application}:{self.version}:{self.part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How the rows of a unit ended; what the ledger stores of it."""

    rows: int = 0
    """Rows that were read. A replay must read as many."""
    delivered: int = 0
    duplicate: int = 0
    dead_lettered: int = 0
    failed: int = 0
    content: int | None = None
    """The sum of a hash of each row, wrapped to a signed number of 64 bits; `None`: not known. A
    replay must have the same.
    """
    content_of: str = ""
    """What is hashed of a row: its columns and their types, as text. Sums of different columns are
    not compared.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What has been committed."""

    counts: Counts = field(default_factory=Counts)
    letters_held: int = 0
    """Dead letters of it of which nobody has said that they were written."""


class Transaction(Sink[T_contra], Protocol[T_contra]):
    """A sink whose writes commit together; what `async with transaction(sink, unit)` gives."""

    @property
    def unit(self) -> Unit | None:
        """What it was entered with."""
        ...

    @property
    def committed(self) -> Committed | None:
        """Inside: what an earlier attempt has committed under this unit, `None` if none has. After
        the commit: what is committed.
        """
        ...

    @property
    def history(self) -> str:
        """What the destination's writes go on from, as text; empty where it does not say.

        Another one than a transaction had before means that another server took over, which may
        lack what that one had committed.
        """
        ...

    def record(self, counts: Counts) -> None:
        """Have `counts` stored with the commit; the last call counts. Raises
        `NonDeterministicReplay` if the unit had other rows before.

        Rows are compared by their number, and by their content where that is known on both sides.
        """
        ...

    def hold_letters(self, count: int) -> None:
        """So many dead letters more are held until the commit. For sinks that hold them."""
        ...

    async def wrote_letters(self, count: int) -> None:
        """Record, after the commit, how many held letters are written. Raises and suspends."""
        ...


@runtime_checkable
class TransactionalSink(Protocol):
    """A sink whose writes can commit together. Enter it by `penstock.transaction(sink, unit)`."""

    def transaction(self, unit: Unit | None) -> AbstractAsyncContextManager[Transaction[Any]]:
        """A sink whose writes commit when the context ends, and not if it ends by an exception."""
        ...


def transaction(
    sink: Sink[T], unit: Unit | None = None
) -> AbstractAsyncContextManager[Transaction[T]]:
    """Have all that is written inside commit together, once per unit.

    `async with transaction(sink, unit) as tx:`, and in it `await send(tx, batch)` for each batch.

    Args:
        sink: a stack that `check_transactional` takes, opened.
        unit: the name under which it commits once. Without one nothing is stored beside what is
            written.

    Leaving it commits. Left by an exception or cancelled it is rolled back, and that exception goes
    on. Batches may be sent side by side; the destination takes one after another. Whoever knows the
    counts gives them to `tx.record` before leaving.

    Raises, on entering: `ConfigError` as `check_transactional` does; `UnitRefused` where the ledger
    knows the version otherwise; `UnavailableError` where the destination is not there. On leaving:
    `UnknownOutcomeError` where nobody knows whether it was applied; with a unit the next attempt
    finds out. At either end: `TransactionLost` where it is certain that nothing was. Suspends.
    """
    check_transactional(sink)
    return cast("TransactionalSink", sink).transaction(unit)


def check_transactional(sink: object) -> None:
    """Raise `ConfigError` unless all of a stack can live in a transaction; the message names the
    part that cannot, and why.

    Needs no open sink. Does not suspend.
    """
    part = sink
    while True:
        if isinstance(part, RefusesTransaction):
            raise bad("sink", part, f"cannot write in a transaction: {part.refuses_transaction}")
        if not isinstance(part, TransactionalSink):
            rule = (
                "cannot write in a transaction: it has no `transaction(unit)`; use a "
                "destination that has, or do without"
            )
            raise bad("sink", part, rule)
        inner = inner_of(part)
        if inner is None:
            return
        part = inner


class Attempt:
    """What every transaction has beside its writes: base of those of the destinations."""

    def __init__(self, unit: Unit | None) -> None:
        self._unit = unit
        self._committed: Committed | None = None
        self._found = False
        self.history = ""
        """See `Transaction.history`."""
        self.counts = Counts()
        """What the commit stores."""
        self.letters_held = 0

    def found(self, committed: Committed | None) -> None:
        """This is what an earlier attempt has committed."""
        self._committed = committed
        self._found = committed is not None
        if self._unit is not None and committed is not None and committed.letters_held:
            logger.error(_LETTERS_LOST, self._unit.name, committed.letters_held)

    @property
    def unit(self) -> Unit | None:
        """What the transaction was entered with."""
        return self._unit

    @property
    def committed(self) -> Committed | None:
        """Inside what an earlier attempt has committed; after the commit what is committed."""
        return self._committed

    @property
    def is_replay(self) -> bool:
        """Whether the unit was committed before this attempt began."""
        return self._found

    def record(self, counts: Counts) -> None:
        """Store `counts` with the commit; compare them with what an earlier attempt has stored."""
        if self._found and self._unit is not None and self._committed is not None:
            check_same_rows(self._unit, self._committed.counts, counts)
        self.counts = counts

    def hold_letters(self, count: int) -> None:
        """So many more are held."""
        self.letters_held += count

    def commits(self) -> None:
        """It is committed now."""
        self._committed = Committed(counts=self.counts, letters_held=self.letters_held)

    async def wrote_letters(self, count: int) -> None:
        """So many fewer are held. Override it to tell the ledger."""
        if self._committed is not None:
            self._committed = replace(
                self._committed, letters_held=self._committed.letters_held - count
            )


def all_duplicate(batch: Batch[object]) -> WriteResult:
    """What a write answers under a unit that was committed before."""
    return WriteResult.from_outcomes(batch, [Outcome.DUPLICATE] * len(batch))


def has_ended(unit: Unit | None) -> TransactionLost:
    """The error of whoever writes to a transaction that is over."""
    name = "the transaction" if unit is None else f"the transaction of {unit.name}"
    return TransactionLost(f"{name} has ended; nothing can be written in it any more")


def check_same_parts(unit: Unit, known: Unit) -> None:
    """Raise `UnitRefused` if `known`, which is committed, belongs to the same version and was cut
    otherwise.
    """
    if (unit.application, unit.version) != (known.application, known.version):
        return
    if (
        unit.types != known.types
        and unit.types
        and known.types
        and (unit.parts, unit.rule) == (known.parts, known.rule)
    ):
        raise UnitRefused(
            f"unit={unit.name!r}: version {unit.version} of {unit.application!r} was committed "
            f"in parts by {unit.rule!r} of {known.types!r}, "
            f"and now comes by that of {unit.types!r}; equal values of other types fall into "
            "other parts, so some rows would be written twice "
            "and others never; go on with the old types until this version is complete"
        )
    if (unit.parts, unit.rule) == (known.parts, known.rule):
        return
    raise UnitRefused(
        f"unit={unit.name!r}: version {unit.version} of {unit.application!r} was committed in "
        f"{known.parts} parts by the rule "
        f"{known.rule!r}, and now comes in {unit.parts} by {unit.rule!r}; other parts hold "
        "other rows, so some would be written twice and "
        "others never; go on with the old ones until this version is complete"
    )


def check_same_rows(unit: Unit, known: Counts, counts: Counts) -> None:
    """Raise `NonDeterministicReplay` if the rows of `unit` are not those that were committed as
    `known`, as far as counts tell.
    """
    if known.rows != counts.rows:
        raise NonDeterministicReplay(
            f"{unit} was committed with {known.rows} rows, and now has {counts.rows}: "
            f"{_OTHER_ROWS}; what makes the rows must give the same "
            "ones each time"
        )
    if known.content is None or counts.content is None or known.content == counts.content:
        return
    if known.content_of != counts.content_of:
        logger.warning(_OTHER_COLUMNS, unit.name, known.content_of, counts.content_of)
        return
    raise NonDeterministicReplay(
        f"{unit} was committed with {known.rows} rows of another content (of "
        f"{known.content_of}): {_OTHER_ROWS}. A query with a deleted or "
        "copied checkpoint counts from 0 again: give it another app_id. Or a column is made "
        "anew in each run, such as current_timestamp(): "
        "leave it out with content="
    )


class _Enlisted(Generic[T]):
    """A transaction as a sink around its destination shows it."""

    def __init__(self, sink: Sink[T], within: Transaction[T]) -> None:
        self.inner = sink
        self.within = within
        """The destination's own."""

    @property
    def unit(self) -> Unit | None:
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
        errors = await send(self.inner, batch)
        return WriteResult.failed(batch, errors) if errors else None

    def __repr__(self) -> str:
        return f"Transaction({self.unit}, {self.inner!r})"


def enlisted(around: Callable[[Sink[T]], Sink[T]], within: Transaction[T]) -> Transaction[T]:
    """The transaction with one more sink around its writes, which `around` makes."""
    if isinstance(within, _Enlisted):
        return _Enlisted(around(within.inner), within.within)
    return _Enlisted(around(within), within)
