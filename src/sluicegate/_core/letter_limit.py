"""The limits on consecutive dead letters and on their ratio. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class LetterLimit:
    """Counts dead letters among the last `window` ended items, in order of their end.

    `arguments` are the names of the two limits in the caller's API, for messages.
    """

    def __init__(
        self,
        max_ratio: float | None,
        max_consecutive: int | None,
        window: int,
        *,
        arguments: tuple[str, str] = ("max_ratio", "max_consecutive"),
        what: str = "items",
    ) -> None:
        self._max_ratio = max_ratio
        self._max_consecutive = max_consecutive
        self._arguments = arguments
        self._what = what
        self._recent: deque[bool] = deque(maxlen=window)
        self._dead = 0
        self._in_a_row = 0

    def after(self, ended: Iterable[bool]) -> str | None:
        """Record ended items, `True` for each dead letter; return the exceeded limit, if any."""
        recent, longest = self._recent, 0
        for dead in ended:
            if len(recent) == recent.maxlen:
                self._dead -= recent[0]
            recent.append(dead)
            self._dead += dead
            self._in_a_row = self._in_a_row + 1 if dead else 0
            longest = max(longest, self._in_a_row)
        if self._max_consecutive is not None and longest >= self._max_consecutive:
            return (
                f"{longest} {self._what} in a row failed for good "
                f"({self._arguments[1]}={self._max_consecutive})"
            )
        if (
            self._max_ratio is not None
            and len(recent) == recent.maxlen
            and self._dead > self._max_ratio * len(recent)
        ):
            return (
                f"{self._dead} of the last {len(recent)} {self._what} failed for good "
                f"({self._arguments[0]}={self._max_ratio})"
            )
        return None
