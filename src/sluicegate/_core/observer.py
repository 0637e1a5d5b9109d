"""Observers of a batcher and of a consumer: a few synchronous callbacks, none of them per item.

1. Without observers there is no cost, and with observers none per item: counts and levels are read
   from `stats()`.
2. Only a consumer's observer whose `handling`, called once per run, returns a callback is called
   for every turn of a handler: for tracing and durations.
3. The first error of an observer is logged; errors never affect the batcher or the consumer.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

from .checks import ANY_LENGTH, LONG_TIMEOUT, bad, optional_seconds
from .logs import log_safely
from .runtime.loops import exit_later
from .text import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .batch import Batch
    from .outcome import Outcome
    from .source import TopicPartition


logger = logging.getLogger("sluicegate.observer")

Seen = TypeVar("Seen")
T = TypeVar("T")


class Observer:
    """Base class of batcher observers; all methods do nothing. Override what you need.

    Callbacks run on the batcher's loop and must return quickly. The first exception is logged;
    exceptions never affect the batcher. A `KeyboardInterrupt` or `SystemExit` ends the loop as soon
    as the batcher has finished its current step.
    """

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """The batcher `name` has opened; its method `stats()` returns `Stats` from any thread.

        Hold it weakly (`WeakMethod`), so that a batcher that is garbage-collected with pending
        items can report it. Other threads may see the middle of a step, with counts that do not add
        up.
        """

    def on_sealed(self, batch: Batch[Any]) -> None:
        """A worker has taken a sealed batch; its `sealed_at` is the time of sealing."""

    def on_flush_start(self, batch: Batch[Any]) -> None:
        """The write of the batch begins."""

    def on_flushed(
        self, batch: Batch[Any], seconds: float, errors: Mapping[int, BaseException]
    ) -> None:
        """The write has ended after `seconds`, backoffs included; no `errors` means success."""

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        """Items (indices of the sealed batch) have an outcome; one call per settle and outcome."""

    def on_retry(self, batch: Batch[Any], error_class: str, items: int, delay: float) -> None:
        """`items` of the batch failed with `error_class`; resent in `delay` seconds or later."""

    def on_destination(self, name: str, state: str, reason: str) -> None:
        """The destination has entered the state `available`, `throttled`, `circuit_open`,
        `unavailable` or `refused`.

        `reason` is the error's type and text, without item values; empty for `available`.
        """

    def on_dropped(self, name: str, items: Sequence[Any], reason: str) -> None:
        """Items were dropped by an overflow policy, or refused at `add`."""

    def on_adapted(self, name: str, workers: int, max_items: int) -> None:
        """An adaptive batcher has changed its limits to these numbers of workers and items per
        batch.
        """

    def on_state(self, name: str, state: str) -> None:
        """The batcher has entered the state `opening`, `open`, `closing`, `closed` or `broken`."""


class Watchers(Generic[Seen]):
    """Several observers as one; their errors never reach the observed object."""

    def __init__(self, observers: Iterable[Seen] = ()) -> None:
        self._observers = tuple(observers)
        self._complained: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._observers)

    def __iter__(self) -> Iterator[Seen]:
        return iter(self._observers)

    def tell(self, call: Callable[[Seen], None]) -> None:
        """Call every observer; log the first error of each."""
        for observer in self._observers:
            self.ask(observer, partial(call, observer))

    def ask(self, observer: Seen, call: Callable[[], T]) -> T | None:
        """Call a function of one observer; return its result, or `None` if it raised."""
        try:
            return call()
        except BaseException as error:  # even an exit must not interrupt a step
            exit_later(error)
            self._complain(observer, error)
            return None

    def _complain(self, observer: Seen, error: BaseException) -> None:
        if id(observer) not in self._complained:
            self._complained.add(id(observer))
            line = "the observer %s raised; further errors of it are not logged"
            log_safely(logger, logging.ERROR, line, repr_of(observer), error=error)


class Observers(Watchers[Observer]):
    """The observers of a batcher, or of a sink."""


ConsumerState = Literal[
    "opening", "ready", "not_ready", "stalled", "moving", "draining", "closed",
]  # fmt: skip
"""The states that `on_state` reports."""
ClaimChange = Literal["assigned", "revoked", "lost"]
"""The changes that `on_claims` reports."""
HandlerOutcome = Literal[
    "ack", "skip", "nak", "dead_letter", "terminate", "manual", "mixed", "invalid", "error",
]  # fmt: skip


class HandlerEnd(NamedTuple):
    """The result of one turn of a handler, including its steps."""

    outcome: HandlerOutcome
    """`ack` for `Ack` or `None`; `mixed` for a batch that is not acknowledged in full; `invalid`
    for a return value that is not a result; `error` for an exception.
    """
    error: BaseException | None
    """The exception it raised, or the error of its result."""
    seconds: float


HandlerWatch: TypeAlias = "Callable[[Sequence[Any]], Callable[[HandlerEnd], None] | None]"
"""Called with the messages of a turn when it begins. The returned function is called when the turn
ends, in the same task; with several observers, in reverse order.
"""


class ConsumerObserver:
    """Base class of consumer observers; all methods do nothing. Override what you need.

    Callbacks run in the consumer's loop and must return quickly. The first exception is logged;
    exceptions never affect the consumer. A `KeyboardInterrupt` or `SystemExit` ends the loop as
    soon as the consumer has finished its current step.
    """

    lag_every: float | None = None
    """Interval, in seconds, at which the ends of the source's partitions are requested for
    `stats().lags`; `None` if this observer does not need the lag. The shortest interval of all
    observers is used.
    """

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """The consumer `name` is opening; `stats()` returns its `ConsumerStats`, from any thread.

        Hold it weakly (`WeakMethod`), so that a dropped consumer can be collected.
        """

    def on_state(self, name: str, state: ConsumerState) -> None:
        """The consumer has entered this state.

        `opening`, `draining` and `closed` are reported immediately; `ready`, `not_ready`, `stalled`
        and `moving` (no longer stalled) within a second.
        """

    def on_claims(
        self, name: str, change: ClaimChange, partitions: Sequence[TopicPartition]
    ) -> None:
        """Partitions have been assigned to this process, are being revoked, or have been lost."""

    def on_committed(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        error: BaseException | None,
    ) -> None:
        """A commit of positions has ended. With an `error` it failed, but the positions may have
        been stored.

        Not called for a commit that the source makes by itself during a revoke.
        """

    def on_poison(self, name: str, message: Any, error: BaseException, action: str) -> None:
        """A message cannot be handled; `action` is the poison strategy, or `dead_letter` if its
        handler requested that.
        """

    def handling(self, name: str, *, is_batch: bool) -> HandlerWatch | None:
        """Called once, when `run` or `run_batch` begins.

        Return the function to call for every turn of the handler, or `None`.
        """
        return None


class ConsumerObservers(Watchers[ConsumerObserver]):
    """The observers of a consumer."""

    @property
    def lag_every(self) -> float | None:
        """The shortest lag interval of all observers; `None` if none of them needs the lag."""
        wanted = [optional_seconds("lag_every", each.lag_every, usual=ANY_LENGTH) for each in self]
        return min((every for every in wanted if every is not None), default=None)


def checked_consumer_observers(given: object) -> tuple[ConsumerObserver, ...]:
    """Check an `observers` argument. Raises `ConfigError`."""
    if isinstance(given, (ConsumerObserver, type, str, bytes)) or not hasattr(given, "__iter__"):
        raise bad("observers", given, "must be a list of observers: observers=[observer]")
    observers = tuple(cast("Iterable[Any]", given))
    for place, observer in enumerate(observers):
        if not isinstance(observer, ConsumerObserver):
            rule = "must be an instance of a ConsumerObserver, such as ConsumerTracing()"
            raise bad(f"observers[{place}]", observer, rule)
        optional_seconds(f"observers[{place}].lag_every", observer.lag_every, usual=LONG_TIMEOUT)
    return observers
