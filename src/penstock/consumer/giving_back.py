"""Records that the source takes back: those that wait for long, and poison.

1. The turn of the message goes on until the source has stored it. A failure is repeated: nothing is
   given up for the source's fault.
2. The source ends the claim of a record that it has taken back. So what was delivered behind it
   leaves before the key is free, and comes again behind it.
3. A message whose claim ends otherwise meanwhile is left: it comes again, as after any lost claim.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from .._core.errors import ClosedError
from .._core.say import say
from .._core.told import for_log
from .wait_reason import WaitReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .._core.source import ReturnedAs, SourceClaim, SourceRecord, TakesBack
    from .commons import Commons
    from .departures import Departures
    from .errands import Errands
    from .insisting import Insisting
    from .message import Message

Call: TypeAlias = "Callable[[SourceClaim, int, SourceRecord], Awaitable[ReturnedAs | None]]"
"""Gives back a record of a claim, of which everything before an offset is settled."""

logger = logging.getLogger("penstock.consumer")

_GIVEN_UP = "%s: %s cannot be handled, and the source has it as %s (%s)"


class Returns:
    """Gives messages back to a source that takes them."""

    def __init__(
        self,
        source: TakesBack,
        errands: Errands,
        departures: Departures,
        insisting: Insisting,
        commons: Commons,
    ) -> None:
        self._source = source
        self._errands = errands
        self._departures = departures
        self._insisting = insisting
        self._name = commons.name
        self.after = source.back_after
        """Seconds of a backoff from which on a message is given back."""

    def put_back(self, message: Message, delay: float) -> None:
        """Give back a message that is to be tried again later."""
        tries = message.attempts
        put_back = partial(
            self._source.put_back, error=tries.error, delay=delay, tries=tries.counted
        )
        self._start(message, put_back)

    def give_up(self, message: Message, error: BaseException, *, bury: bool = False) -> None:
        """Give back a message that cannot be handled."""
        tries = max(1, message.attempts.failed)
        call = partial(self._source.give_up, error=error, tries=tries, bury=bury)
        self._start(message, call, error)

    def _start(
        self,
        message: Message,
        call: Call,
        error: BaseException | None = None,
    ) -> None:
        self._errands.start(
            message,
            self._return(message, call, error),
            partial(self._departures.leave, message),
            WaitReason.GIVING_BACK,
        )

    async def _return(
        self,
        message: Message,
        call: Call,
        error: BaseException | None,
    ) -> None:
        fate: ReturnedAs | None = None

        async def attempt() -> None:
            nonlocal fate
            claim = message.claim
            fate = await call(claim, claim.tracker.position(), message.record)

        try:
            await self._insisting.on(attempt, f"giving back {message.coordinates}", message.claim)
        except ClosedError:  # the source has closed, and given back what it held
            fate = None
        if fate is None:
            self._departures.leave(message)
            return
        if error is not None:
            told = for_log(error)
            say(logger, logging.ERROR, _GIVEN_UP, self._name, message.coordinates, fate, told)
        self._departures.returned(message, fate)
