"""One event: the argument of its handler, its turns, and what a turn leaves for its end.

1. An event has one turn for its handler and one for each finaliser. A turn may leave one job, which
   it must return (`Pending`); otherwise the job would be lost. Between two turns the event is
   *out*, and then *waits* to be finalised. `EventTurn` is the only record of this.
2. A turn collects the items that it forwards through a batcher. They are submitted at its end, in
   order; a turn that fails forwards nothing.
3. An event whose handlers and finalisers have ended is complete when all its forwarded items have
   arrived. Until then it has no turn, and the position does not pass it.
4. A refused item fails the event, in a finaliser with its own attempts. Each further attempt
   submits the item again; no handler is repeated.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from ..._core.checks import bad, is_async
from ..._core.errors import ClosedError, ConfigError, ItemFailed
from ..._core.runtime.run import consumer_feeds
from ..handling.results import Ack, Incomplete
from .state import FAILED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from ..._core.outcome import Outcome
    from ..._core.source import TopicPartition
    from ..lanes.message import Message
    from .state import StateStore, Stores


Finalise: TypeAlias = "Callable[[EventContext], Awaitable[object]]"
"""Runs in the order of the event, and returns the same results as a handler."""


class Completes(Protocol):
    """Interface that completes the events of a consumer."""

    @property
    def stores(self) -> Stores:
        """The open stores."""
        ...

    def job_complete(self, context: EventContext, finalise: Finalise) -> bool:
        """See `EventContext.job_complete`."""
        ...

    def forward(self, context: EventContext, item: object) -> None:
        """See `EventContext.forward`."""


class EventContext:
    """One event with its data, until it is complete.

    Its methods and the store may only be used in the event's turn, that is, in its handler and
    finalisers. These never run concurrently with others of the same partition.
    """

    __slots__ = ("_events", "message", "turn", "user_data")

    def __init__(self, message: Message, events: Completes) -> None:
        self.message = message
        self.user_data: Any = None
        """Arbitrary data that the handler stores for finalisers."""
        self._events = events
        self.turn = EventTurn(message)
        """The state of the event's turn, for the consumer."""

    @property
    def partition(self) -> TopicPartition:
        """The partition of the event."""
        return self.message.claim.partition

    @property
    def store(self) -> StateStore:
        """The state of the partition. Raises `ConfigError` for a consumer without state."""
        return self._events.stores.of(self.partition)

    @property
    def value(self) -> Any:
        """The event's value."""
        return self.message.value

    @property
    def key(self) -> Any:
        """The record's own key."""
        return self.message.key

    def job_complete(self, finalise: Finalise) -> bool:
        """Complete an event whose handler has returned, or is about to return, `Incomplete()`.

        `finalise(context)` runs in the event's order, and returns the same results as a handler:
        `None` if the event is now complete, `Incomplete()` if it is completed later. Call it in the
        loop's thread, in any task. Returns false, with no effect, if the event was already
        completed or its claim has ended; in the latter case the next owner of its partition handles
        it again.
        """
        return self._events.job_complete(self, finalise)

    def forward(self, item: Any) -> None:
        """Forward an item when this turn ends. A turn that fails forwards nothing. Does not
        suspend.

        With `run_events(forward_to=batcher)` the item is submitted to the batcher. The event is
        complete, and the position passes it, only when the item has arrived: at least once. With a
        `KafkaState` the item is a `KafkaRecord`, sent in the transaction of the state and the
        position: readers of committed records see it once. Raises `ConfigError` without either, for
        an item that the state cannot send, and outside the event's turn.
        """
        self.turn.check_forwards()
        self._events.forward(self, item)

    def __repr__(self) -> str:
        return f"EventContext({self.message!r})"


async def complete(_: EventContext) -> None:
    """Complete an event that has no finaliser."""


class EventTurn:
    """The current turn of an event, with the job and the items that it leaves for its end, or the
    place of the event between two turns.
    """

    __slots__ = ("_is_on", "_message", "forwarded", "is_out", "job", "waits")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._is_on = True
        self.is_out = False
        """Whether the event has no turn until it is completed."""
        self.waits = False
        """Whether the event waits for its turn to be finalised, ready or ahead in its lane."""
        self.job: Pending | None = None
        """The job that this turn has scheduled, or that the event is out for."""
        self.forwarded: ForwardedItems | None = None
        """Items that all turns of the event have forwarded through a batcher."""

    def begin(self) -> None:
        """Begin the turn of a finaliser."""
        self._is_on, self.waits, self.job = True, False, None
        if self.forwarded is not None:
            self.forwarded.noted.clear()

    def end(self, result: object) -> None:
        """End the turn.

        Raises `ConfigError` if it has not returned the job that it has scheduled, so that the job
        would be lost, or has returned one of another turn or event.
        """
        self._is_on, job = False, self.job
        if result is job:
            return
        self.job = None
        if isinstance(result, Pending):
            rule = "was scheduled in another turn, or with the context of another event"
            raise ConfigError(f"the result of {self._message!r}, {result.what}, {rule}")
        if job is not None and not isinstance(result, FAILED):
            rule = "return the result of schedule() or add(), otherwise it never runs"
            told = f"{self._message!r} has {job.what}, but returned {result!r:.100}"
            raise ConfigError(f"{told}; {rule}")

    def fail(self) -> None:
        """End a turn that has raised."""
        self._is_on, self.job = False, None

    def step_out(self, job: Pending | None) -> None:
        """Let the event wait for this job, or for a job of the application."""
        self.is_out, self.job = True, job

    def come_in(self) -> None:
        """Let the event wait for its turn to be finalised."""
        self.is_out, self.waits, self.job = False, True, None

    def leave(self) -> bool:
        """Leave the event to a later claim; return whether it was out."""
        was_out, self.is_out, self.job = self.is_out, False, None
        return was_out

    def withdraw(self) -> None:
        """Stop the job that the event is out for."""
        if self.is_out and self.job is not None:
            self.job.withdraw()

    def check_forwards(self) -> None:
        """Raise `ConfigError` outside the event's turn."""
        if not self._is_on:
            raise ConfigError(f"forward() was called outside the turn of {self._message!r}")

    def forward(self, item: Any) -> None:
        """Submit an item at the end of this turn."""
        if self.forwarded is None:
            self.forwarded = ForwardedItems()
        self.forwarded.noted.append(item)

    def schedule(self, job: Pending) -> None:
        """Require this turn to return this job.

        Raises `ConfigError` outside the event's turn, and for a second job of the turn: an event
        waits for one at a time.
        """
        if not self._is_on:
            rule = "schedule with the context of the event that is being handled"
            raise ConfigError(f"{self._message!r} cannot have {job.what} outside its turn; {rule}")
        if self.job is not None:
            told = f"{self._message!r} cannot have {job.what} in addition to another job"
            rule = "schedule one job, or add one group of items, in a turn, and return the result"
            raise ConfigError(f"{told}; {rule}")
        self.job = job


class Pending(Incomplete):
    """A job that begins when there is room. Unlike other results, its subclasses may have
    attributes, and each is equal only to itself.
    """

    __slots__ = ()
    __setattr__ = object.__setattr__
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def submit(self) -> bool:
        """Begin it; return false if it waits for room. In that case `Events.let_continue` is called
        later.
        """
        raise NotImplementedError

    def withdraw(self) -> None:
        """Stop it, because its event is left."""
        raise NotImplementedError

    @property
    def what(self) -> str:
        """A description, for errors."""
        return str(self)

    def __str__(self) -> str:
        """Return its place, for operators."""
        raise NotImplementedError


class ForwardReceipt(Protocol):
    """The receipt of an item."""

    @property
    def outcome(self) -> Outcome | None:
        """Its outcome; `None` while the item is pending."""
        ...

    async def settled(self) -> Outcome:
        """Wait for any outcome."""
        ...

    def result(self) -> Outcome:
        """Return a success, or raise `ItemFailed`."""
        ...


@runtime_checkable
class TakesForwarded(Protocol):
    """The part of a `Batcher` that is used here."""

    async def submit(self, item: Any) -> ForwardReceipt:
        """Accept an item; suspends while there is no room."""
        ...


@runtime_checkable
class ForwardsInTurn(Protocol):
    """A store that sends forwarded records together with the changes of the turn."""

    def forward(self, record: object) -> None:
        """Send a record with this turn. Raises `ConfigError`."""
        ...


class ForwardedItems:
    """The items that one event has forwarded."""

    def __init__(self) -> None:
        self.noted: list[Any] = []
        """Items of the current turn."""
        self.sent: list[tuple[Any, ForwardReceipt]] = []
        self._again: list[Any] = []
        """Refused items, for the next attempt of the event."""
        self._watch: asyncio.Task[None] | None = None

    async def submit(self, batcher: TakesForwarded) -> None:
        """Submit the items of the turn."""
        for item in self.noted:
            self.sent.append((item, await batcher.submit(item)))
        self.noted.clear()

    def arrived(self) -> bool:
        """Remove the items that have arrived; return whether none remains."""
        self.sent = [
            (item, receipt)
            for item, receipt in self.sent
            if receipt.outcome is None or not receipt.outcome.is_safe
        ]
        return not self.sent

    def watch(self, waiting: Coroutine[Any, Any, None] | None) -> None:
        """Run a coroutine that waits for the receipts; with `None`, stop it."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch = None if waiting is None else asyncio.get_running_loop().create_task(waiting)

    def repeat(self) -> None:
        """Submit refused items again."""
        self.noted += self._again
        self._again = []

    def refuse(self) -> None:
        """Raise the error of the first refused item. All refused items are for the next attempt."""
        refused, self.sent = self.sent, []
        self._again = [item for item, _ in refused]
        try:
            refused[0][1].result()
        except ItemFailed as failed:
            raise failed.__cause__ or failed from None


class Forwarding:
    """Submission of the items of events, and completion of the events when the items have
    arrived.
    """

    def __init__(self, batcher: TakesForwarded, end: Callable[[BaseException], object]) -> None:
        consumer_feeds(batcher)
        self._batcher = batcher
        self._end = end
        """Ends the run with an error."""

    async def after(self, context: EventContext, result: object) -> object:
        """Submit the items of a turn that ended with this result; return the result to
        carry out.
        """
        items = context.turn.forwarded
        if items is None or not (result is None or isinstance(result, (Ack, Incomplete))):
            return result
        try:
            await items.submit(self._batcher)
        except ClosedError as error:
            self._end(error)
            raise
        if isinstance(result, Incomplete) or items.arrived():
            return result
        return Arriving(items, context)


@dataclass(frozen=True, slots=True, eq=False)
class Arriving(Pending):
    """Forwarded items of an event, in flight."""

    items: ForwardedItems
    context: EventContext

    def submit(self) -> bool:
        """Wait for the receipts outside of turns."""
        self.items.watch(self._wait())
        return True

    async def _wait(self) -> None:
        for _, receipt in self.items.sent:
            await receipt.settled()
        self.context.job_complete(self._finalise)

    async def _finalise(self, context: EventContext) -> None:
        del context
        self.items.repeat()
        if not self.items.arrived():
            self.items.refuse()

    def withdraw(self) -> None:
        """Stop waiting."""
        self.items.watch(None)

    def __str__(self) -> str:
        return f"{len(self.items.sent)} forwarded items in flight"


def check_forward_to(given: object) -> None:
    """Raise `ConfigError` for a value other than a batcher or `None`."""
    if given is None:
        return
    if not isinstance(given, TakesForwarded) or not is_async(given.submit):
        raise bad("forward_to", given, "must be an open Batcher")
