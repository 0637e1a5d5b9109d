"""Items that turns forward through a batcher.

1. A turn collects the items that it forwards. They are submitted at its end, in order; a turn that
   fails forwards nothing.
2. An event whose handlers and finalisers have ended is complete when all its forwarded items have
   arrived. Until then it has no turn, and the position does not pass it.
3. A refused item fails the event, in a finaliser with its own tries. Each further try submits the
   item again; no handler is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core.checks import bad, is_async
from ..._core.errors import ClosedError
from ..._core.runtime.run import consumer_feeds
from ..results import Ack, Incomplete
from .forwarded import ForwardedItems, TakesForwarded
from .pending import Pending

if TYPE_CHECKING:
    from collections.abc import Callable

    from .context import EventContext


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
        return Arriving(items)


@dataclass(frozen=True, slots=True)
class Arriving(Pending):
    """Forwarded items of an event, in flight."""

    items: ForwardedItems

    def submit(self, context: EventContext) -> bool:
        """Wait for the receipts outside of turns."""
        self.items.watch(self._wait(context))
        return True

    async def _wait(self, context: EventContext) -> None:
        for _, receipt in self.items.sent:
            await receipt.settled()
        context.job_complete(self._finalise)

    async def _finalise(self, context: EventContext) -> None:
        del context
        self.items.repeat()
        if not self.items.arrived():
            self.items.refuse()

    def withdraw(self) -> None:
        """Stop waiting."""
        self.items.watch(None)

    @property
    def what(self) -> str:
        """A description, for errors."""
        return str(self)

    def __str__(self) -> str:
        return f"{len(self.items.sent)} forwarded items in flight"


def check_forward_to(given: object) -> None:
    """Raise `ConfigError` for a value other than a batcher or `None`."""
    if given is None:
        return
    if not isinstance(given, TakesForwarded) or not is_async(given.submit):
        raise bad("forward_to", given, "must be an open Batcher")
