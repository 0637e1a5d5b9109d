"""Records that the source takes back: records with a long backoff, and poison.

1. The turn of the message continues until the source has stored it. A failed call is repeated: no
   message is lost because of the source.
2. The source ends the claim of a record that it has taken back. Records delivered behind it
   therefore leave before the key is free, and are delivered again behind it.
3. If the claim ends meanwhile for another reason, the message is left: it is delivered again, as
   after any lost claim.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from .._core.errors import ClosedError
from .._core.logs import for_log, log_safely
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
"""Returns a record of a claim to its source; all records before the given offset are settled."""

logger = logging.getLogger("sluicegate.consumer")

_GIVEN_UP = "%s: %s cannot be handled; the source keeps it as %s (%s)"


class Returns:
    """Returns messages to a source that takes them back."""

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
        """A message with a backoff of at least this many seconds is returned to the source."""

    def put_back(self, message: Message, delay: float) -> None:
        """Return a message that is to be retried later."""
        tries = message.attempts
        put_back = partial(
            self._source.put_back, error=tries.error, delay=delay, tries=tries.counted
        )
        self._start(message, put_back)

    def give_up(self, message: Message, error: BaseException, *, bury: bool = False) -> None:
        """Return a message that cannot be handled."""
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
        except ClosedError:  # the source has closed, and has returned its records
            fate = None
        if fate is None:
            self._departures.leave(message)
            return
        if error is not None:
            told = for_log(error)
            log_safely(
                logger, logging.ERROR, _GIVEN_UP, self._name, message.coordinates, fate, told
            )
        self._departures.returned(message, fate)
