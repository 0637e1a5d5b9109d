"""The log lines of librdkafka: at most one a minute for each cause.

While a broker is down, each of its connections logs every attempt, up to 40 lines a second. Two lines
have the same cause if they differ in nothing but the client, times and counts.
"""

from __future__ import annotations

import logging
import re

EVERY = 60.0
"""Seconds between two lines with the same cause."""
MOST = 1000
"""The most causes to remember."""

_CLIENT = re.compile(r"\[[^\]]*#(?:consumer|producer)-\d+\]")
_COUNT = re.compile(r"(?<![\w:.#/\-])\d+")
"""A number that is no port, and no part of an address or a name."""


class OncePerCause(logging.Filter):
    """Drops lines with the same cause as one of the last minute."""

    def __init__(self) -> None:
        super().__init__()
        self._causes: dict[str, float] = {}
        """The time of the last line of each cause."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the line."""
        now, text = record.created, record.getMessage()
        cause = f"{record.levelno} {_COUNT.sub('', _CLIENT.sub('', text))}"
        if 0 <= now - self._causes.get(cause, -EVERY) < EVERY:
            return False
        self._causes.pop(cause, None)
        if len(self._causes) >= MOST:
            del self._causes[next(iter(self._causes))]
        self._causes[cause] = now
        return True


LOGGER = logging.getLogger("librdkafka")
LOGGER.addFilter(OncePerCause())
