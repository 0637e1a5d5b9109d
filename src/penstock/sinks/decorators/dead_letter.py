"""Permanently failed items are written to a second sink, with the error.

1. Only lasting failures are taken: permanent errors, exhausted attempts, unlisted exceptions.
   Errors of a destination that is down, refuses everything or throttles are not caused by an item;
   neither are those of a stopping batcher.
2. An item that any attempt may have applied is not taken, whatever its last error: it ends
   `unknown`. With `take_unknown` it is taken, marked `maybe_delivered`. Its key continues, as after
   any unknown outcome; a dead letter holds it according to `on_key_failure`.
3. The record is written before the item's outcome is final. It has its own delivery, so it never
   counts as delivered.
4. If a record cannot be made or written, only its item is `rejected`, and that is logged as an
   error.
5. In a transaction the records are held until the commit and written then; a rollback leaves none.
6. With too many failures, the batcher stops and returns its items instead of moving the stream to
   the dead letters.
7. Log lines show errors without the values of items (`_core.told`); the records contain the whole
   message.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..._core import checks, told
from ..._core.causes import cause_name, code_of
from ..._core.classify import classified
from ..._core.decorator import WrappingSink
from ..._core.delivery.tries import Tries
from ..._core.enlisted import enlisted
from ..._core.error_groups import by_error
from ..._core.errors import DeadLetterLimit, ErrorClass, ParkedBehind, UnknownOutcomeError
from ..._core.function_sink import as_sink
from ..._core.keywords import known_arguments
from ..._core.letter_limit import LetterLimit
from ..._core.opening import opened
from ..._core.order.keys import text_of as key_text
from ..._core.order.prefix import held_back
from ..._core.outcome import Outcome
from ..._core.result import WriteResult
from ..._core.send import send
from ..._core.sink import SinkDecorator
from ..._core.tracing import trace_of
from ..._core.transaction import transaction_of
from ...letters.record import DeadLetterRecord
from .held_letters import HeldLetters

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from contextlib import AsyncExitStack

    from ..._core.batch import Batch
    from ..._core.sink import Classifier, Sink, SinkLike
    from ..._core.transaction import Transaction, Unit

T = TypeVar("T")

logger = logging.getLogger("penstock.dead_letter")

_LOST = (
    "%d items of batch %s failed permanently, and the dead-letter sink did not accept them either: "
    "they are rejected (%s, after %s)"
)
_BURIED = "%d of %d items of batch %s were written to the dead letters; the first because of %s"
_UNCLASSED = "classify= of the dead letters raised %s for %s; the error is classified by its type"
_TAKEN = frozenset(
    {ErrorClass.PERMANENT, ErrorClass.TRANSIENT, ErrorClass.DEADLOCK, ErrorClass.UNLISTED}
)


@known_arguments(takes_sink=True)
class DeadLetter(SinkDecorator):
    """Writes each permanently failed item to `target`, as a `DeadLetterRecord`; its outcome is
    `dead_lettered`.

    Args:
        target: the sink of the records, or a function of a batch of them. It may be a stack with
            its own retry.
        record: a function from a `DeadLetterRecord` to an item of the target. Default: the record
            itself.
        classify: a function from an exception to its `ErrorClass`, or to `None` for any other
            exception; consulted before the sink's own.
        take_unknown: whether to take an item if an attempt, the last or an earlier one, may have
            been applied, marked `maybe_delivered`. By default it ends `unknown`.
        max_ratio: the batcher stops if the ratio of dead letters among the last `window` items
            exceeds this; more than 0 and at most 1.
        max_consecutive: the batcher stops at this number of consecutive dead letters.
        window: the number of recent items for `max_ratio`, which has no effect before that many
            items have ended.

    Errors of destinations that are down, refuse everything or throttle are passed on, never taken;
    so are the errors of items that a stopping batcher abandons. If the target does not take a
    record, its item is `rejected`, and that is logged as an error. A replay (`penstock dlq replay`)
    takes nothing: a letter that fails again stays in its store.

    In a transaction the items count as `dead_lettered` at once, and their records are written after
    the commit. Records that the target does not take then are logged as an error and stay in the
    transaction's `committed.letters_held`. Leaving the transaction suspends until the target has
    written them; set a time limit in the target.

    Raises `ConfigError` for a bad argument.

    Examples:
        >>> import asyncio
        >>> from penstock import DeadLetter, PermanentError, RowBatch, WriteResult, send, stack
        >>> from penstock.sinks import MemorySink
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
        classify: Classifier | None = None,
        take_unknown: bool = False,
        max_ratio: float | None = None,
        max_consecutive: int | None = None,
        window: int = 1000,
    ) -> None:
        self.target: Sink[Any] = as_sink(target, "target")
        for name, function in (("record", record), ("classify", classify)):
            if function is not None and not callable(function):
                raise checks.bad(name, function, "must be a function")
        self.record = record
        self.classify = classify
        self.take_unknown = checks.flag("take_unknown", take_unknown)
        self.max_ratio = checks.optional_share("max_ratio", max_ratio)
        self.max_consecutive = checks.optional_count("max_consecutive", max_consecutive)
        self.window = checks.count("window", window)

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`."""
        return _DeadLetterSink(sink, self)

    def __repr__(self) -> str:
        return f"DeadLetter({self.target!r})"


class _DeadLetterSink(WrappingSink[T]):
    _run_time: ClassVar[tuple[str, ...]] = ("_limit",)
    refuses_positions = (
        "its records are written after the commit, and a crash in between would lose them although "
        "the position is past them; use dead_letters= of flow.transaction, which writes them "
        "before the commit"
    )

    def __init__(self, inner: Sink[T], settings: DeadLetter) -> None:
        super().__init__(inner)
        self.inners = (settings.target,)
        self._settings = settings
        self._is_limited = settings.max_ratio is not None or settings.max_consecutive is not None
        self._limit: LetterLimit | None = None
        self.held: HeldLetters | None = None
        """The records held for a transaction's commit."""

    async def _open(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(opened(self._settings.target))
        await super()._open(stack)

    def _make_state(self) -> None:
        if self._limit is None:
            self._limit = LetterLimit(
                self._settings.max_ratio, self._settings.max_consecutive, self._settings.window
            )

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Transaction[T]]:
        """The wrapped sink's transaction; its dead letters are written after the commit."""
        async with transaction_of(self.inner, unit) as within:
            held = HeldLetters(within)
            yield enlisted(partial(self._holding, held), within)
        await held.bury(self._settings.target)

    def _holding(self, held: HeldLetters, inner: Sink[T]) -> Sink[T]:
        made = self.around(inner)
        made.hold_letters(held)
        return made

    def hold_letters(self, held: HeldLetters) -> None:
        """Hold records for the commit from now on."""
        self.held = held

    def dead_letters_around(self, sink: Sink[T]) -> Sink[T]:
        """The same dead letters around another sink, open while this one is."""
        return _DeadLetterSink(sink, self._settings)

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        errors = held_back(batch, await send(self.inner, batch))
        if not errors and not self._is_limited:
            return None
        if batch.lineage.is_replay:
            return WriteResult.failed(batch, errors) if errors else None
        classes: dict[int, ErrorClass] = {}
        for error, indices in by_error(errors):
            classes.update(dict.fromkeys(indices, self._class_of(error)))
        dead = self._dead(batch, classes)
        self._judge(batch, dead, errors)
        if not dead:
            return WriteResult.failed(batch, errors) if errors else None
        written = await self._bury(batch, dead, errors, classes)
        left = {index: error for index, error in errors.items() if index not in written}
        return WriteResult.failed(batch, left) if left else None

    def _dead(self, batch: Batch[T], classes: Mapping[int, ErrorClass]) -> list[int]:
        """The indices of the items to take, in order."""
        if self._settings.take_unknown:
            return [
                index
                for index in sorted(classes)
                if classes[index] in _TAKEN or classes[index] is ErrorClass.UNKNOWN
            ]
        maybe = batch.maybe_applied
        return [
            index for index in sorted(classes) if classes[index] in _TAKEN and index not in maybe
        ]

    def _class_of(self, error: BaseException) -> ErrorClass:
        """The error's class. An exception raised by the classifier is logged and affects no other
        item.
        """
        try:
            return classified(error, self._settings.classify, super().classify)
        except Exception as broken:
            logger.error(_UNCLASSED, told.for_log(broken), told.for_log(error))  # noqa: TRY400  # a traceback would show values
            return classified(error)

    def _judge(self, batch: Batch[T], dead: list[int], errors: Mapping[int, BaseException]) -> None:
        """Raise `DeadLetterLimit`, before any record is written, if there are too many."""
        if not self._is_limited:
            return
        dead_ones = set(dead)
        self._make_state()
        assert self._limit is not None
        ended = [
            index in errors
            for index in range(len(batch))
            if index not in errors or index in dead_ones
        ]
        why = self._limit.after(ended)
        if why is not None:
            first = errors[dead[0]]
            message = (
                f"{why}; the batcher stops instead of filling the dead letters. The "
                f"first error: {told.for_log(first)}"
            )
            raise DeadLetterLimit(message) from first

    async def _bury(
        self,
        batch: Batch[T],
        dead: list[int],
        errors: Mapping[int, BaseException],
        classes: Mapping[int, ErrorClass],
    ) -> set[int]:
        """Write a record for each of these items; return the indices of the written ones."""
        made, unmade = self._made(batch, dead, errors, classes)
        if self.held is None:
            unmade.update(await self._write_letters(batch, made))
        elif made:
            self.held.hold(batch.pick(made), [*made.values()], errors[next(iter(made))])
        if unmade:
            index, error = next(iter(unmade.items()))
            logger.error(
                _LOST, len(unmade), batch.id, told.for_log(error), told.for_log(errors[index])
            )
        written = set(dead) - set(unmade)
        if written and self.held is None:
            logger.warning(
                _BURIED, len(written), len(batch), batch.id, told.for_log(errors[min(written)])
            )
        return written

    def _made(
        self,
        batch: Batch[T],
        dead: list[int],
        errors: Mapping[int, BaseException],
        classes: Mapping[int, ErrorClass],
    ) -> tuple[dict[int, Any], dict[int, BaseException]]:
        """The record of each item in the target's form, or the error that prevented it."""
        made: dict[int, Any] = {}
        unmade: dict[int, BaseException] = {}
        make, keys, maybe = self._settings.record, batch.item_keys(), batch.maybe_applied
        for index in dead:
            try:
                record = _record(
                    batch, index, keys[index], errors[index], classes[index], maybe=index in maybe
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
                self._settings.target,
                way.derive(made.values(), [(place,) for place in range(len(made))]),
            )
        indices = list(made)
        # a cancelled target that did not end has no result
        cut_off = UnknownOutcomeError("the write of the record was cut off")
        return {indices[place]: failed.get(place) or cut_off for place in picked.unsettled()}

    def __repr__(self) -> str:
        return f"{self._settings!r}({self.inner!r})"


def _record(
    batch: Batch[T], index: int, key: str, error: BaseException, kind: ErrorClass, *, maybe: bool
) -> DeadLetterRecord[T]:
    """The record of one item."""
    delivery = batch.delivery
    now, wall = delivery.clock.now(), delivery.clock.wall_time()
    root = batch.roots((index,))[0]
    tries = delivery.tries(root) or Tries(1, now, now)
    return DeadLetterRecord(
        item=batch.shown(index),
        error_type=type(error).__name__,
        error_class=kind.value,
        message=told.storable(told.text_of(error)),
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
