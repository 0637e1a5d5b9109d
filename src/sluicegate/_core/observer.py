"""Observers of a batcher: a few synchronous callbacks, none of them per item."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .runtime.exits import exit_later
from .say import say
from .text import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .batch import Batch
    from .outcome import Outcome

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

        Hold it weakly (`WeakMethod`), so that a batcher that is garbage-collected with items inside
        can report it. Other threads may see the middle of a step, with counts that do not add up.
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
        """`state` is `available`, `throttled`, `circuit_open`, `unavailable` or `refused`.

        `reason` is the error's type and text without values of items; empty for `available`.
        """

    def on_dropped(self, name: str, items: Sequence[Any], reason: str) -> None:
        """Items were dropped by an overflow policy, or refused at `add`."""

    def on_adapted(self, name: str, workers: int, max_items: int) -> None:
        """An adaptive batcher now uses this many workers and items per batch."""

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
            say(logger, logging.ERROR, line, repr_of(observer), error=error)


class Observers(Watchers[Observer]):
    """The observers of a batcher, or of a sink."""
