"""Whether a store responds during one write. Pure.

1. An upload without a connection, or without a response in time, ends the write if no other one was
   confirmed since it began: the uploads that have not begun are not attempted. With a thousand
   partitions, the write would otherwise end an hour after the store has stopped responding, and
   only then be an outage that is logged.
2. An item that was not sent uses up no attempt, so the error of its object is an `UnavailableError`.
3. Objects whose earlier upload had no response come last, so that one that always takes too long
   holds back no other.
"""

from __future__ import annotations

from ..._core.errors import RefusedError, SinkError, TimedOutError, UnavailableError


class Reach:
    """The responses of a store to the uploads of one write."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._confirmed = 0
        self._lost: UnavailableError | None = None

    def begin(self) -> int:
        """Begin an upload; return its mark. Raises `UnavailableError` if the store does not
        respond.
        """
        if self._lost is not None:
            raise self._lost.with_traceback(None)  # raised for each upload, it would grow
        return self._confirmed

    def confirm(self) -> None:
        """Count a confirmed upload."""
        self._confirmed += 1

    def fail(self, mark: int, error: SinkError) -> None:
        """Note an upload that failed."""
        if self._lost is not None:
            return
        is_away = isinstance(error, UnavailableError) and not isinstance(error, RefusedError)
        if (is_away or isinstance(error, TimedOutError)) and mark == self._confirmed:
            self._lost = UnavailableError(
                f"not sent, because {self._place} did not respond to another upload of the write"
            )
