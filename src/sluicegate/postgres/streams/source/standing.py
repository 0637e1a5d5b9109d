"""Detects a horizon without progress, and names the transaction that holds it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .log_reader import LogReader
    from .parts import StreamParts

STANDS_AFTER = 5.0
"""Seconds without progress although there may be messages beyond the horizon."""

_STANDS = (
    "the log is read up to position %d of %d: an open transaction that appends holds the horizon "
    "(%s); messages behind it are delivered when it ends"
)


class StandingHorizon:
    """Detects a horizon that is held back by an open transaction."""

    def __init__(self, log: LogReader, parts: StreamParts) -> None:
        self._log = log
        self._clock = parts.clock
        self._troubles = parts.troubles
        self._at = -1
        self._since = 0.0

    async def look(self) -> None:
        """Check once. Raises errors of the client."""
        position, last = await self._log.horizon()
        now = self._clock.now()
        if position != self._at or position >= last:
            self._at, self._since = position, now
            self._troubles.note("horizon", None)
        elif now - self._since >= STANDS_AFTER:
            appender = await self._log.oldest_appender()
            told = _STANDS % (position, last, appender) if appender else None
            self._troubles.note("horizon", told)
