"""Permanently failed items are written to a second sink, with the error.

1. Each failed item is of one class, or of none (`letter_class`); `take` names the classes to take.
   An outage that no decorator inside has given up is of none: a destination that is down, refuses
   everything or throttles is not caused by an item, and a retry outside still waits for it. Neither
   are the errors of a stopping batcher of any.
2. An item that any attempt may have applied is of the class `unknown`, whatever its last error. It
   is not taken by default, and ends `unknown`: its key continues. Taken, it is marked
   `maybe_delivered`, and holds its key according to `on_key_failure`.
3. The record is written before the item's outcome is final. It has its own delivery, so it never
   counts as delivered.
4. If a record cannot be made or written, only its item is `rejected`, and that is logged as an
   error.
5. In a transaction the records are held until the commit and written then; a rollback leaves none.
   One commit cannot cover both destinations, so the gap is recorded: the ledger stores the number
   of held letters with the commit and is updated when they are written. If the process ends in
   between, the number stays there, and the next attempt of the unit reports it.
6. With too many failures, the batcher stops and returns its items instead of moving the stream to
   the dead letters.
7. Log lines show errors without the values of items (`_core.logs`); the records contain the whole
   message.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast, get_args

from .._core import checks
from .._core.batch import RowBatch
from .._core.classify import by_error, cause_name, classified, code_of
from .._core.decorator import WrappingSink
from .._core.delivery.states import Tries
from .._core.errors import (
    CircuitOpenError,
    DeadLetterLimit,
    ErrorClass,
    ParkedBehind,
    UnknownOutcomeError,
)
from .._core.keywords import known_arguments
from .._core.letter_limit import LetterLimit
from .._core.logs import for_log, storable
from .._core.opening import opened
from .._core.order.keys import key_text
from .._core.order.left_out import held_back
from .._core.outcome import Outcome
from .._core.public import publish
from .._core.send import send
from .._core.sink import SinkDecorator, WriteResult, branches_of, capabilities_of, chain, walk
from .._core.stacking import as_sink, is_same_sink
from .._core.text import text_of
from .._core.trace_context import trace_of
from .._core.transaction import enlist, transaction_of
from ..letters.letter import DeadLetterRecord

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
    from contextlib import AsyncExitStack

    from .._core.batch import Batch
    from .._core.delivery.states import RetryEnd
    from .._core.sink import Sink, SinkLike
    from .._core.transaction import Transaction, Unit


logger = logging.getLogger("sluicegate.dead_letter")


T = TypeVar("T")


_LOST = (
    "%d items of batch %s failed permanently, and the dead-letter sink did not accept them either: "
    "they are rejected (%s, after %s)"
)
_BURIED = "%d of %d items of batch %s were written to the dead letters; the first because of %s"
_UNCLASSED = "a classify function raised %s for %s; the error is classified by its type"

LetterClass = Literal["permanent", "exhausted", "transient", "given_up", "unknown"]
"""Classes of failed items, as `DeadLetter(take=)` names them."""
_CLASSES: tuple[LetterClass, ...] = get_args(LetterClass)
_USUAL: tuple[LetterClass, ...] = ("permanent", "exhausted", "transient", "given_up")
_TRANSIENT = frozenset({ErrorClass.TRANSIENT, ErrorClass.DEADLOCK, ErrorClass.UNLISTED})
_BURIED_AFTER_COMMIT = (
    "%d items of batch %s were written to the dead letters after the commit; the first because "
    "of %s"
)
_REFUSED = (
    "%d items of batch %s failed permanently, and the dead-letter sink did not accept them after "
    "the commit (%s, after %s)"
)
_LEFT = "%d dead letters of %s were not written, although it has committed"
_NOT_TOLD = "the %d dead letters of %s are written, but its ledger could not be updated: %s"


def letter_class(kind: ErrorClass, end: RetryEnd | None, *, maybe: bool) -> LetterClass | None:
    """Return the class of an item that failed with an error of `kind`; `None` if it is never taken.

    `end` is the end of the retries inside, `maybe` whether an attempt may have been applied.
    """
    if kind is ErrorClass.UNKNOWN:
        return "unknown"
    if kind is ErrorClass.STOPPED:
        return None
    known: LetterClass | None = end
    if known is None and kind is ErrorClass.PERMANENT:
        known = "permanent"
    elif known is None and kind in _TRANSIENT:
        known = "transient"
    return "unknown" if maybe and known is not None else known


@known_arguments()
class DeadLetter(SinkDecorator):
    """Writes each permanently failed item to `target`, as a `DeadLetterRecord`; its outcome is
    `dead_lettered`.

    Args:
        target: the sink of the records, or a function of a batch of them. It may be a stack with
            its own retry.
        record: a function from a `DeadLetterRecord` to an item of the target. Default: the record
            itself.
        take: the classes of failed items to take; the others pass outward. Default: all but
            `"unknown"`.

            - `"permanent"`: refused for good.
            - `"exhausted"`: failed until the attempts or `max_seconds` of a `Retry` were used up.
            - `"transient"`: failed temporarily, or with an exception that no classifier knows, and
              no `Retry` inside has retried it.
            - `"given_up"`: not applied because of an outage, a refusal or throttling that a
              decorator inside gives up: `Retry(give_up_after=...)`,
              `Retry(on_refused="dead_letter")` or `CircuitBreaker(when_open="raise")`.
            - `"unknown"`: perhaps applied by the last attempt or an earlier one; its letter is
              marked `maybe_delivered`. Otherwise such an item ends `unknown`.
        max_ratio: the batcher stops if the ratio of dead letters among the last `window` items
            exceeds this; more than 0 and at most 1.
        max_consecutive: the batcher stops at this number of consecutive dead letters.
        window: the number of recent items for `max_ratio`, which has no effect before that many
            items have ended.

    The errors of an outage that is not given up are passed on, never taken; so are the errors of
    items that a stopping batcher abandons. If the target does not take a record, its item is
    `rejected`, and that is logged as an error. A replay (`sluicegate dlq replay`) takes nothing: a
    letter that fails again stays in its store.

    In a transaction the items count as `dead_lettered` at once, and their records are written after
    the commit. Records that the target does not take then are logged as an error and stay in the
    transaction's `committed.letters_held`. Leaving the transaction suspends until the target has
    written them; set a time limit in the target.

    Raises `ConfigError` for a bad argument; around a sink that is also the target, unless `record=`
    makes items of it; and around another `DeadLetter` that takes one of the same classes first.

    Examples:
        >>> import asyncio
        >>> from sluicegate import DeadLetter, PermanentError, RowBatch, WriteResult, send, stack
        >>> from sluicegate.sinks import MemorySink
        >>> async def insert(batch):
        ...     bad = {i: PermanentError("not a number") for i, item in enumerate(batch) if item == "x"}
        ...     return WriteResult.failed(batch, bad)
        >>> letters = MemorySink()
        >>> asyncio.run(send(stack(insert, DeadLetter(letters)), RowBatch(["1", "x"])))
        {}
        >>> [(letter.item, letter.message) for letter in letters.items]
        [('x', 'not a number')]
    """

    def __init__(
        self,
        target: SinkLike[Any],
        *,
        record: Callable[[DeadLetterRecord[Any]], Any] | None = None,
        take: Collection[LetterClass] | tuple[LetterClass, ...] = _USUAL,
        max_ratio: float | None = None,
        max_consecutive: int | None = None,
        window: int = 1000,
    ) -> None:
        self.target: Sink[Any] = as_sink(target, "target")
        if record is not None and not callable(record):
            raise checks.bad("record", record, "must be a function")
        self.record = record
        self.take = _checked_classes(take)
        self.max_ratio = checks.optional_share("max_ratio", max_ratio)
        self.max_consecutive = checks.optional_count("max_consecutive", max_consecutive)
        self.window = checks.count("window", window)

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`. Raises `ConfigError` if it is the target, or has dead letters that take one
        of the same classes.
        """
        if self.record is None and (own := _shared(sink, self.target)) is not None:
            raise checks.bad(
                "target",
                own,
                "is the sink whose failed items it would take; write the letters to another one, "
                "such as FileSink(path), or make items of them with record=",
            )
        for part in chain(sink):
            if isinstance(part, _DeadLetterSink) and (both := self.take & part.take):
                which = ", ".join(repr(name) for name in _CLASSES if name in both)
                mine = tuple(name for name in _CLASSES if name in self.take)
                rule = (
                    f"{which} would never arrive, since {part.settings!r} inside takes the same; "
                    "name each class in one DeadLetter only"
                )
                raise checks.bad("take", mine, rule)
        return _DeadLetterSink(sink, self)

    def __repr__(self) -> str:
        return f"DeadLetter({self.target!r})"


def _checked_classes(take: object) -> frozenset[LetterClass]:
    """Check the classes. Raises `ConfigError`."""
    named = f"the classes are {', '.join(map(repr, _CLASSES))}"
    if isinstance(take, str) or not isinstance(take, Collection):
        example = f"({take!r},)" if take in _CLASSES else "('permanent', 'exhausted')"
        raise checks.bad("take", take, f"must be a list of classes, such as {example}; {named}")
    classes: Collection[object] = cast("Collection[object]", take)
    if not classes:
        raise checks.bad("take", classes, f"must name at least one class; {named}")
    for name in classes:
        if name not in _CLASSES:
            hint = "an outage that a decorator gives up is 'given_up'"
            raise checks.bad("take", classes, f"{checks.shown(name)} is no class; {named}; {hint}")
    return frozenset(cast("Collection[LetterClass]", take))


def _shared(sink: object, target: object) -> object | None:
    """Return the part of `sink` that gets every item and is also a part of the target, if any."""
    own = [*walk(target)]
    return next((each for each in _writing(sink) if any(is_same_sink(each, o) for o in own)), None)


def _writing(sink: object) -> Iterator[object]:
    """Yield the parts of a stack that get every item: neither routes nor targets of letters."""
    for part in chain(sink):
        yield part
        if not isinstance(part, _DeadLetterSink) and not capabilities_of(part).several_destinations:
            for branch in branches_of(part):
                yield from _writing(branch)


class _DeadLetterSink(WrappingSink[T]):
    _run_time: ClassVar[tuple[str, ...]] = ("_limit",)
    refuses_positions = (
        "its records are written after the commit, and a crash in between would lose them although "
        "the position is past them; use poison=Poison(dead_letters=...) of flow.transaction, which "
        "writes them before the commit"
    )

    def __init__(
        self,
        inner: Sink[T],
        settings: DeadLetter,
        *,
        take: frozenset[LetterClass] | None = None,
    ) -> None:
        super().__init__(inner)
        self.inners = (settings.target,)
        self.settings = settings
        self.take = settings.take if take is None else take
        """The classes of failed items that are taken here."""
        self._is_limited = settings.max_ratio is not None or settings.max_consecutive is not None
        self._limit: LetterLimit | None = None
        self.held: HeldLetters | None = None
        """The records held for a transaction's commit."""

    @property
    def takes_transient(self) -> bool:
        """Whether an item is taken after one failure that a retry outside might have repaired."""
        return "transient" in self.take

    async def _open(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(opened(self.settings.target))
        await super()._open(stack)

    def _make_state(self) -> None:
        if self._limit is None:
            self._limit = LetterLimit(
                self.settings.max_ratio, self.settings.max_consecutive, self.settings.window
            )

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Transaction[T]]:
        """The wrapped sink's transaction; its dead letters are written after the commit."""
        async with transaction_of(self.inner, unit) as within:
            held = HeldLetters(within)
            yield enlist(partial(self._holding, held), within)
        await held.bury(self.settings.target)

    def _holding(self, held: HeldLetters, inner: Sink[T]) -> Sink[T]:
        made = self.around(inner)
        made.hold_letters(held)
        return made

    def hold_letters(self, held: HeldLetters) -> None:
        """Hold records for the commit from now on."""
        self.held = held

    def dead_letters_around(self, sink: Sink[T]) -> Sink[T]:
        """The same dead letters around another sink, open while this one is. They take every item
        that this sink refuses.
        """
        return _DeadLetterSink(sink, self.settings, take=frozenset(_CLASSES))

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        errors = held_back(batch, await send(self.inner, batch))
        if not errors and not self._is_limited:
            return None
        if batch.lineage.is_replay:
            return WriteResult.failed(batch, errors) if errors else None
        dead = self._dead(batch, errors)
        self._judge(batch, dead, errors)
        if not dead:
            return WriteResult.failed(batch, errors) if errors else None
        written = await self._bury(batch, dead, errors)
        left = {index: error for index, error in errors.items() if index not in written}
        return WriteResult.failed(batch, left) if left else None

    def _dead(self, batch: Batch[T], errors: Mapping[int, BaseException]) -> dict[int, ErrorClass]:
        """The items to take, in order, each with the class of its error."""
        dead: dict[int, ErrorClass] = {}
        maybe = batch.maybe_applied
        for error, indices in by_error(errors):
            kind = self._class_of(error)
            is_open = isinstance(error, CircuitOpenError)  # raised only to give up
            end = "given_up" if is_open else batch.delivery.retry_end(error)
            for index in indices:
                if letter_class(kind, end, maybe=index in maybe) in self.take:
                    dead[index] = kind
        return dict(sorted(dead.items()))

    def _class_of(self, error: BaseException) -> ErrorClass:
        """The error's class. An exception raised by the classifier is logged and affects no other
        item.
        """
        try:
            return classified(error, super().classify)
        except Exception as broken:
            logger.error(_UNCLASSED, for_log(broken), for_log(error))  # noqa: TRY400  # a traceback would show values
            return classified(error)

    def _judge(
        self, batch: Batch[T], dead: Collection[int], errors: Mapping[int, BaseException]
    ) -> None:
        """Raise `DeadLetterLimit`, before any record is written, if there are too many."""
        if not self._is_limited:
            return
        self._make_state()
        assert self._limit is not None
        ended = [
            index in errors for index in range(len(batch)) if index not in errors or index in dead
        ]
        why = self._limit.after(ended)
        if why is not None:
            first = errors[next(iter(dead))]
            message = (
                f"{why}; the batcher stops instead of filling the dead letters. The "
                f"first error: {for_log(first)}"
            )
            raise DeadLetterLimit(message) from first

    async def _bury(
        self,
        batch: Batch[T],
        dead: Mapping[int, ErrorClass],
        errors: Mapping[int, BaseException],
    ) -> set[int]:
        """Write a record for each of these items; return the indices of the written ones."""
        made, unmade = self._made(batch, dead, errors)
        if self.held is None:
            unmade.update(await self._write_letters(batch, made))
        elif made:
            self.held.hold(batch.pick(made), [*made.values()], errors[next(iter(made))])
        if unmade:
            index, error = next(iter(unmade.items()))
            logger.error(_LOST, len(unmade), batch.id, for_log(error), for_log(errors[index]))
        written = set(dead) - set(unmade)
        if written and self.held is None:
            logger.warning(
                _BURIED, len(written), len(batch), batch.id, for_log(errors[min(written)])
            )
        return written

    def _made(
        self,
        batch: Batch[T],
        dead: Mapping[int, ErrorClass],
        errors: Mapping[int, BaseException],
    ) -> tuple[dict[int, Any], dict[int, BaseException]]:
        """The record of each item in the target's form, or the error that prevented it."""
        made: dict[int, Any] = {}
        unmade: dict[int, BaseException] = {}
        make, keys, maybe = self.settings.record, batch.item_keys(), batch.maybe_applied
        for index, kind in dead.items():
            try:
                record = _record(
                    batch, index, keys[index], errors[index], kind, maybe=index in maybe
                )
                made[index] = record if make is None else make(record)
            except Exception as error:
                unmade[index] = error
        return made, unmade

    async def _write_letters(
        self, batch: Batch[T], made: Mapping[int, Any]
    ) -> dict[int, BaseException]:
        """Write the records in a separate delivery; return an error for each one not stored."""
        picked = batch.pick(made)
        with picked.child("dead-letter", _buried) as ways:
            batch.delivery.new_stretch()
            way = ways["dead-letter"]
            failed = await send(
                self.settings.target,
                way.derive(made.values(), [(place,) for place in range(len(made))]),
            )
        indices = list(made)
        # a cancelled target that did not end has no result
        cut_off = UnknownOutcomeError("the write of the record was cut off")
        return {indices[place]: failed.get(place) or cut_off for place in picked.unsettled()}

    def __repr__(self) -> str:
        return f"{self.settings!r}({self.inner!r})"


def _record(
    batch: Batch[T], index: int, key: str, error: BaseException, kind: ErrorClass, *, maybe: bool
) -> DeadLetterRecord[T]:
    """The record of one item."""
    delivery = batch.delivery
    now, wall = delivery.clock.now(), delivery.clock.wall_time()
    root = batch.roots((index,))[0]
    tries = delivery.tries(root) or Tries(0, now, now)  # never sent
    return DeadLetterRecord(
        item=batch.shown(index),
        error_type=type(error).__name__,
        error_class=kind.value,
        message=storable(text_of(error)),
        attempts=tries.count,
        first_at=datetime.fromtimestamp(wall - (now - tries.first_at), UTC),
        last_at=datetime.fromtimestamp(wall - (now - tries.last_at), UTC),
        batcher=batch.name,
        batch_id=batch.id,
        key=key,
        tenant=batch.tenant,
        trace_id=trace_of(root),
        maybe_delivered=maybe,
        item_key=None if batch.keys is None else key_text(batch.keys[index]),
        parked_behind=isinstance(error, ParkedBehind),
        cause_type=cause_name(error),
        code=code_of(error),
    )


def _buried(outcome: Outcome) -> Outcome:
    return Outcome.DEAD_LETTERED if outcome.is_safe else Outcome.REJECTED


@dataclass(frozen=True, slots=True)
class _Group:
    """The records of one write."""

    records: Batch[Any]
    lineage: str
    reason: BaseException


class HeldLetters:
    """Records held for the commit of one transaction."""

    def __init__(self, within: Transaction[Any]) -> None:
        self._within = within
        self._groups: list[_Group] = []

    def hold(self, items: Batch[Any], records: list[Any], reason: BaseException) -> None:
        """Hold a record for each of `items`, which count as dead letters from now on. The records
        have the same write key in every attempt.
        """
        lineage = replace(items.lineage, id=f"{items.write_key}/dead-letter")
        self._groups.append(_Group(RowBatch(records, lineage=lineage), items.id, reason))
        self._within.hold_letters(len(records))
        items.settle(range(len(items)), Outcome.DEAD_LETTERED)

    async def bury(self, target: Sink[Any]) -> None:
        """Write the letters after the commit and update its ledger. Failures are logged; only
        cancellation is raised.
        """
        held = sum(len(group.records) for group in self._groups)
        if not held:
            return
        written = 0
        try:
            for group in self._groups:
                written += await self._bury(target, group)
        finally:
            if written < held:
                logger.error(_LEFT, held - written, self._name)
        try:
            if written:
                await self._within.wrote_letters(written)
        except Exception as error:
            logger.error(_NOT_TOLD, written, self._name, for_log(error))  # noqa: TRY400  # a traceback would show values
            logger.debug("the whole error", exc_info=error)

    @staticmethod
    async def _bury(target: Sink[Any], group: _Group) -> int:
        errors = await send(target, group.records)
        if errors:
            logger.error(
                _REFUSED,
                len(errors),
                group.lineage,
                for_log(next(iter(errors.values()))),
                for_log(group.reason),
            )
        written = len(group.records) - len(errors)
        if written:
            logger.warning(_BURIED_AFTER_COMMIT, written, group.lineage, for_log(group.reason))
        return written

    @property
    def _name(self) -> str:
        unit = self._within.unit
        return "a transaction" if unit is None else f"unit {unit.name}"


publish("sluicegate", DeadLetter)
