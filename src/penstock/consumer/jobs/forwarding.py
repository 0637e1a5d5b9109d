"""What turns forward through a batcher, beside their events.

1. A turn notes what it forwards. At its end all of it is submitted, in order; a turn that fails
   forwards nothing.
2. An event whose handlers and finalisers have ended is complete once everything that it has forwarded
   has arrived. It gives its turn up meanwhile, and its position is not passed.
3. What was refused fails the event, in a finaliser with its own tries. Each further try submits it again:
   no handler is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core.checks import bad, is_async
from ..._core.errors import ClosedError
from ..results import Ack, Incomplete
from .forwarded import ForwardedItems, TakesForwarded
from .pending import Pending

if TYPE_CHECKING:
    from collections.abc import Callable

    from .context import EventContext


class Forwarding:
    """Submits the items of events, and completes these when they have arrived."""

    def __init__(self, batcher: TakesForwarded, end: Callable[[BaseException], object]) -> None:
        self._batcher = batcher
        self._end = end
        """Ends the run with an error."""

    async def after(self, context: EventContext, result: object) -> object:
        """Submit what a turn has forwarded that ended with this result; return its result."""
        items = context.forwarded
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
    """What an event has forwarded, on its way."""

    items: ForwardedItems

    def submit(self, context: EventContext) -> bool:
        """Wait for its receipts beside the turns."""
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
        """Wait no more."""
        self.items.watch(None)

    def __str__(self) -> str:
        return f"{len(self.items.sent)} forwarded items on their way"


def check_forward_to(given: object) -> None:
    """Raise `ConfigError` for anything but a batcher, or `None`."""
    if given is None:
        return
    if not isinstance(given, TakesForwarded) or not is_async(given.submit):
        raise bad("forward_to", given, "must be a Batcher, which is open")
