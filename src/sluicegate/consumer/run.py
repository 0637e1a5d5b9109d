"""The run of a consumer: the state that all its parts share, and how it ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .._core.clock import Signal
from .._core.errors import SluicegateError
from .._core.observer import ConsumerObservers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from .._core.clock import Clock
    from .._core.observer import ConsumerObserver, ConsumerState

Fate = Literal[
    "dead_lettered", "letters", "terminated", "parked", "unparked", "skipped", "naks", "dropped",
    "stale", "returned", "deaf", "batches", "split_batches", "miscounted_batches",
]  # fmt: skip
"""The results counted here; acknowledged messages are counted elsewhere."""


class Run:
    """The run of a consumer: its name, clock and observers, its counts, its signals, and its end.

    A signal without a waiting task is not kept.
    """

    def __init__(self, name: str, clock: Clock, observers: Iterable[ConsumerObserver] = ()) -> None:
        self.name = name
        self.clock = clock
        self.observers = ConsumerObservers(observers)
        self.counts: Counter[str] = Counter()
        self.work = Signal()
        """A message became ready, or backs off."""
        self.room = Signal()
        """The window has room again."""
        self.settled = Signal()
        """A turn or a background task of a message has ended."""
        self.readiness = Signal()
        """Readiness may have changed."""
        self.parking = Signal()
        """Records of a parked key wait for the end of an older turn."""
        self.assignment = Signal()
        """A claim began or ended, was paused or resumed."""
        self.ending = Signal()
        """The drain begins, or a task of the consumer has ended."""
        self.error: BaseException | None = None
        """The first error that ends the consumer."""
        self.is_ending = False
        self.cancellation: asyncio.CancelledError | None = None
        """The first cancellation during the drain."""

    def count(self, fate: Fate, messages: int = 1) -> None:
        """Count messages."""
        self.counts[fate] += messages

    def counted(self, acked: int) -> MessageCounts:
        """Return the current counts; the schedule counts acknowledged messages."""
        return MessageCounts(acked - self.counts["skipped"], **self.counts)

    def tell_state(self, state: ConsumerState) -> None:
        """Notify the observers of a state."""
        self.observers.tell(lambda observer: observer.on_state(self.name, state))

    # -- the end -----------------------------------------------------------------------------------

    def end(self, error: BaseException | None = None) -> None:
        """Begin to drain; an error is raised afterwards. Only the first error counts."""
        self.error = self.error or error
        self.is_ending = True
        self.ending.fire()

    def hasten(self, cancellation: asyncio.CancelledError) -> None:
        """Record that the drain itself was cancelled: it ends immediately, and the cancellation is
        raised.
        """
        self.cancellation = self.cancellation or cancellation


class TaskCancelled(SluicegateError):
    """A task of a consumer was cancelled from outside, or its source raised `CancelledError`."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the task {name!r} was cancelled, by the program or by its source; cancel the task of "
            "`run` instead"
        )


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """Settled and failed messages since the consumer was opened. Counts never decrease."""

    acked: int = 0
    dead_lettered: int = 0
    """Settled with a dead letter."""
    letters: int = 0
    """Dead letters written, including those of messages that then block their key."""
    terminated: int = 0
    """Failed for good without a dead letter (`poison="skip"` without dead letters)."""
    parked: int = 0
    """Written to the park store, including the messages behind them."""
    unparked: int = 0
    """Handled after `unpark`, and removed from the park store."""
    skipped: int = 0
    """Acknowledged by `Skip()`, for example as a known duplicate."""
    naks: int = 0
    """Failed attempts of any kind."""
    dropped: int = 0
    """Left to a later claim because their claim ended, or because of the drain."""
    stale: int = 0
    """Handled after their claim had ended; they are delivered again."""
    returned: int = 0
    """Returned to the source, which delivers them again later or keeps them blocked."""
    deaf: int = 0
    """Handlers that did not end although they were cancelled."""
    batches: int = 0
    """Batches handled or tried."""
    split_batches: int = 0
    """Batches whose handler raised, so that their messages were retried in smaller batches."""
    miscounted_batches: int = 0
    """Batches whose handler returned no list, or a wrong number of results."""
