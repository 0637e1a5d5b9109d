"""Writes repeated until they succeed: dead letters and parked messages.

A failure of the dead letters or of the park store never loses a message: it waits, and other keys
continue.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from .._core.delivery.pacing import LONGEST_ASKED, asked_wait
from .._core.logs import for_log, log_safely

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .._core.retry_policy import BackoffFunction
    from .claim import Claim
    from .commons import Commons

logger = logging.getLogger("sluicegate.consumer")

_FAILED = "%s: %s failed (%s); next try in %.3g s"


class Insisting:
    """Repeats failed calls after a backoff."""

    def __init__(self, commons: Commons, backoff: BackoffFunction) -> None:
        self._clock = commons.clock
        self._name = commons.name
        self._backoff = backoff

    async def on(self, call: Callable[[], Awaitable[object]], what: str, *claims: Claim) -> bool:
        """Call until it succeeds; `what` names the call in the log.

        Returns false if all of the claims had ended before a repetition.
        """
        tries = 0
        while True:
            try:
                await call()
            except (Exception, asyncio.CancelledError) as error:
                if _is_cut(error):
                    raise
                tries += 1
                wait = max(self._backoff(tries, error), asked_wait(error, LONGEST_ASKED) or 0.0)
                log_safely(logger, logging.ERROR, _FAILED, self._name, what, for_log(error), wait)
            else:
                return True
            await self._clock.sleep(wait)
            if all(claim.is_closed for claim in claims):
                return False


def _is_cut(error: BaseException) -> bool:
    """Return whether this task was cancelled; a store may raise `CancelledError` for its own
    reasons.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)
