"""What fails for good goes to a second sink, with its reason, instead of being lost.

1. Only what will not get better by itself is taken: permanent errors, tries used up, exceptions nobody knows. A destination that is down
   or asks to slow down, a write whose outcome is unknown, and what was given up because the batcher stops are not the item's fault.
2. The record is written before the item's outcome is final. It goes on a way of its own, so it never counts as delivered.
3. A record that cannot be written leaves its item `rejected`, and says so loudly.
4. In a transaction the records are held until it has committed, and written then: one that is rolled back leaves none.
5. A stream of which too much goes wrong is not emptied into a file: the batcher stops, and what is inside is handed back.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from .._core import checks
from .._core.classify import classified
from .._core.decorator import WrappingSink
from .._core.delivery import Tries
from .._core.errors import DeadLetterLimit, ErrorClass, ParkedBehind, UnknownOutcomeError
from .._core.function_sink import as_sink
from .._core.keys import text_of
from .._core.opening import opened
from .._core.outcome import Outcome
from .._core.prefix import held_back
from .._core.result import WriteResult
from .._core.send import send
from .._core.tracing import trace_of
from .._core.transaction import enlisted, transaction
from ._dead_letter_held import HeldLetters
from ._dead_letter_share import Share
from ._http_body import to_json

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
    from contextlib import AsyncExitStack

    from .._core.batch import Batch
    from .._core.sink import Classifier, Sink, SinkLike
    from .._core.transaction import Transaction, Unit

T = TypeVar("T")

logger = logging.getLogger("penstock.dead_letter")

_LOST = "%d items of batch %s failed for good, and the dead letters did not take them either: they are rejected (%r, after %r)"
_BURIED = "%d of %d items of batch %s went to the dead letters; the first because of %r"
_TAKEN = frozenset({ErrorClass.PERMANENT, ErrorClass.TRANSIENT, ErrorClass.UNLISTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRecord(Generic[T]):
    """One item that failed for good, and why.

    `PostgresSink(..., columns=DeadLetterRecord.COLUMNS, row=DeadLetterRecord.as_row, on_conflict="ignore")` keeps records in a table.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "key",
        "item",
        "error_type",
        "error_class",
        "message",
        "attempts",
        "first_at",
        "last_at",
        "batcher",
        "batch_id",
        "tenant",
        "trace_id",
        "maybe_delivered",
        "item_key",
        "parked_behind",
    )
    """What `as_row` has values for."""

    item: T
    error_type: str
    """The name of the exception's class."""
    error_class: str
    """What the error means: `permanent`, `transient` (tries used up), `unlisted`, `unknown`."""
    message: str
    attempts: int
    """How many tries failed."""
    first_at: datetime
    """When the first of them ended (UTC)."""
    last_at: datetime
    """When the last of them ended (UTC)."""
    batcher: str
    batch_id: str
    key: str
    """The same for this item in every record of this write, so that a store can leave out what it has already."""
    tenant: object = None
    trace_id: str | None = None
    maybe_delivered: bool = False
    """Whether a try of it may have been applied."""
    item_key: str | None = None
    """The key that order is kept for, as text: a string as it is, any other key as its `repr` behind a colon. `None` without keys."""
    parked_behind: bool = False
    """Whether it was not tried, but came behind a failed item of its key (`Batcher(on_key_failure="park")`)."""

    def as_dict(self) -> dict[str, Any]:
        """The record as a dictionary, times in ISO 8601; the item is left as it is."""
        times = {"first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat()}
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**fields, **times}

    def as_row(self) -> tuple[Any, ...]:
        """The record's values in the order of `COLUMNS`, for a table: the item and the tenant as JSON in text, texts without NUL.

        Raises `TypeError` or `ValueError` for an item that JSON has no form for.
        """
        shown = {
            "item": to_json(self.item).decode(),
            "tenant": None if self.tenant is None else to_json(self.tenant).decode(),
            "message": self.message.replace("\0", "\\x00"),
        }
        return tuple(shown.get(name, getattr(self, name)) for name in self.COLUMNS)


class DeadLetter:
    """Send what fails for good to `target`, one `DeadLetterRecord` per item; the item's outcome is then `dead_lettered`.

    Args:
        target: the sink that takes the records, or a function of a batch of them. It may be a stack with a retry of its own.
        record: a function from a `DeadLetterRecord` to what the target takes. Default: the record itself.
        classify: a function from an exception to its `ErrorClass`, or `None` where it does not know; asked before the sink's own.
        take_unknown: whether an item whose last try was cut off is taken too, marked `maybe_delivered`. By default it ends `unknown`.
        max_ratio: the share of dead letters, more than 0 and at most 1, among the last `window` items above which the batcher stops.
        max_consecutive: how many dead letters in a row stop the batcher.
        window: the number of items that `max_ratio` looks back; below it nothing is judged by ratio.

    Unavailable and throttled destinations and what a stopping batcher gives up are passed on, never taken. A record that the target
    does not take leaves its item `rejected`; that is logged as an error. In a replay (`penstock dlq replay`) nothing is taken: a letter that
    fails again stays where it is.

    In a transaction the items count as `dead_lettered` at once, and their records are written after the commit. What the target does not take
    then is logged as an error and stays in the transaction's `committed.letters_held`. Leaving takes as long as the target: bound it there.

    Raises `ConfigError` for a bad argument.
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
        self.target: Sink[Any] = as_sink(target)
        for name, function in (("record", record), ("classify", classify)):
            if function is not None and not callable(function):
                raise checks.bad(name, function, "must be a function")
        self.record = record
        self.classify = classify
        self.taken = _TAKEN | {ErrorClass.UNKNOWN} if take_unknown else _TAKEN
        self.max_ratio = checks.optional_share("max_ratio", max_ratio)
        self.max_consecutive = checks.optional_count("max_consecutive", max_consecutive)
        self.window = checks.count("window", window)

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`."""
        return _DeadLetterSink(sink, self)

    def __repr__(self) -> str:
        return f"DeadLetter({self.target!r})"


class _DeadLetterSink(WrappingSink[T]):
    _run_time: ClassVar[tuple[str, ...]] = ("_share",)

    def __init__(self, inner: Sink[T], settings: DeadLetter) -> None:
        super().__init__(inner)
        self.inners = (settings.target,)
        self._settings = settings
        self._share: Share | None = None
        self.held: HeldLetters | None = None
        """Where the records wait, in a transaction."""

    async def _open(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(opened(self._settings.target))
        await super()._open(stack)

    def _make_state(self) -> None:
        if self._share is None:
            self._share = Share(self._settings.max_ratio, self._settings.max_consecutive, self._settings.window)

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Transaction[T]]:
        """The wrapped sink's transaction; what fails for good in it is written to the target when it has committed."""
        async with transaction(self.inner, unit) as within:
            held = HeldLetters(within)
            yield enlisted(partial(self._holding, held), within)
        await held.bury(self._settings.target)

    def _holding(self, held: HeldLetters, inner: Sink[T]) -> Sink[T]:
        made = self.around(inner)
        made.held = held
        return made

    def dead_letters_around(self, sink: Sink[T]) -> Sink[T]:
        """The same dead letters around another sink; they are open while this one is."""
        return _DeadLetterSink(sink, self._settings)

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        errors = held_back(batch, await send(self.inner, batch))
        if batch.lineage.is_replay:
            return WriteResult.failed(batch, errors) if errors else None
        classes = {index: self._class_of(error) for index, error in errors.items()}
        dead = [index for index in sorted(classes) if classes[index] in self._settings.taken]
        self._judge(batch, dead, errors)
        if not dead:
            return WriteResult.failed(batch, errors) if errors else None
        written = await self._bury(batch, dead, errors, classes)
        left = {index: error for index, error in errors.items() if index not in written}
        return WriteResult.failed(batch, left) if left else None

    def _class_of(self, error: BaseException) -> ErrorClass:
        return classified(error, self._settings.classify, super().classify)

    def _judge(self, batch: Batch[T], dead: list[int], errors: Mapping[int, BaseException]) -> None:
        """Stop before the records are written if they are too many."""
        if self._settings.max_ratio is None and self._settings.max_consecutive is None:
            return
        dead_ones = set(dead)
        self._make_state()
        assert self._share is not None
        ended = [index in errors for index in range(len(batch)) if index not in errors or index in dead_ones]
        why = self._share.after(ended)
        if why is not None:
            first = errors[dead[0]]
            message = f"{why}; the batcher stops instead of filling the dead letters. The first error: {first!r}"
            raise DeadLetterLimit(message) from first

    async def _bury(
        self, batch: Batch[T], dead: list[int], errors: Mapping[int, BaseException], classes: Mapping[int, ErrorClass]
    ) -> set[int]:
        """Write a record for each of these items; return those for which that worked."""
        made: dict[int, Any] = {}
        unmade: dict[int, BaseException] = {}
        for index, record in zip(dead, self._records(batch, dead, errors, classes), strict=True):
            try:
                made[index] = record if self._settings.record is None else self._settings.record(record)
            except Exception as error:
                unmade[index] = error
        if self.held is None:
            unmade.update(await self._write_letters(batch, made))
        elif made:
            self.held.hold(batch.pick(made), [*made.values()], errors[next(iter(made))])
        if unmade:
            logger.error(_LOST, len(unmade), batch.id, next(iter(unmade.values())), errors[next(iter(unmade))])
        written = set(dead) - set(unmade)
        if written and self.held is None:
            logger.warning(_BURIED, len(written), len(batch), batch.id, errors[min(written)])
        return written

    async def _write_letters(self, batch: Batch[T], made: Mapping[int, Any]) -> dict[int, BaseException]:
        """Write these records on a way of their own; return those that the target did not take."""
        picked = batch.pick(made)
        with picked.child("dead-letter", _buried) as ways:
            batch.delivery.new_stretch()
            way = ways["dead-letter"]
            failed = await send(self._settings.target, way.derive(made.values(), [(place,) for place in range(len(made))]))
        indices = list(made)
        # a target that was cut and did not end has answered nothing
        cut_off = UnknownOutcomeError("the write of the record was cut off")
        return {indices[place]: failed.get(place) or cut_off for place in picked.unsettled()}

    def _records(
        self, batch: Batch[T], dead: list[int], errors: Mapping[int, BaseException], classes: Mapping[int, ErrorClass]
    ) -> Iterator[DeadLetterRecord[T]]:
        delivery = batch.delivery
        now, wall = delivery.clock.now(), delivery.clock.wall_time()
        keys, maybe = batch.item_keys(), batch.maybe_applied
        for index in dead:
            error = errors[index]
            root = batch.roots((index,))[0]
            tries = delivery.tries(root) or Tries(1, now, now)
            yield DeadLetterRecord(
                item=batch[index],
                error_type=type(error).__name__,
                error_class=classes[index].value,
                message=str(error),
                attempts=tries.count,
                first_at=datetime.fromtimestamp(wall - (now - tries.first_at), UTC),
                last_at=datetime.fromtimestamp(wall - (now - tries.last_at), UTC),
                batcher=batch.name,
                batch_id=batch.id,
                key=keys[index],
                tenant=batch.tenant,
                trace_id=trace_of(root),
                maybe_delivered=index in maybe,
                item_key=None if batch.keys is None else text_of(batch.keys[index]),
                parked_behind=isinstance(error, ParkedBehind),
            )

    def __repr__(self) -> str:
        return f"{self._settings!r}({self.inner!r})"


def _buried(outcome: Outcome) -> Outcome:
    return Outcome.DEAD_LETTERED if outcome.is_success else Outcome.REJECTED
