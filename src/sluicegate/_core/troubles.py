"""The reasons why a source cannot deliver, by part; the first one is reported to the host."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .say import say

if TYPE_CHECKING:
    from .source import ClaimHost


class Troubles:
    """The current troubles of a source. Each change is reported to the host and logged."""

    def __init__(self, host: ClaimHost, group: str, logger: logging.Logger) -> None:
        self._host = host
        self._group = group
        self._logger = logger
        self._reasons: dict[str, str] = {}
        self._reported: str | None = None

    def has(self, part: str) -> bool:
        """Whether a part of the source has a trouble."""
        return part in self._reasons

    def note(self, part: str, reason: str | None) -> None:
        """Set the trouble of a part of the source; `None` clears it."""
        if reason is None:
            self._reasons.pop(part, None)
        else:
            self._reasons[part] = reason
        told = next(iter(self._reasons.values()), None)
        if told != self._reported:
            self._reported = told
            self._host.reported(told)
            level = logging.INFO if told is None else logging.WARNING
            say(self._logger, level, "%s: %s", self._group, told or "delivers again")
