"""The dead rows of one unit: counted, bounded, and partly kept for the driver."""

from __future__ import annotations

from typing import Any

from ..report import DeadLettersError
from .lines import to_json

DEAD_ROWS_SHOWN = 20
"""Number of dead rows that a task returns for the message of an error."""
DEAD_ROWS_MARGIN = 1000
"""Number of dead rows beyond the allowed number after which a task fails."""


class TooManyDead(DeadLettersError):
    """A unit was rolled back because too many of its rows failed for good."""


class DeadRowBuffer:
    """The dead rows of one unit; raises `error` at more than `stop_at` rows."""

    def __init__(
        self,
        partition: int,
        keep: int,
        stop_at: float,
        error: type[DeadLettersError] = DeadLettersError,
    ) -> None:
        self.kept: list[str] = []
        """The first `keep` rows, as JSON."""
        self._partition = partition
        self._keep = keep
        self._stop_at = stop_at
        self._error = error
        self._count = 0

    def clear(self) -> None:
        """Discard all rows: the transaction of their attempt was rolled back."""
        self.kept.clear()
        self._count = 0

    def add(self, row: dict[str, Any], error: BaseException) -> None:
        """Count a row. Raises `DeadLettersError` beyond the limit."""
        self._count += 1
        letter = to_json(
            {
                "row": row,
                "error_type": type(error).__name__,
                "message": str(error),
                "partition": self._partition,
            }
        )
        if len(self.kept) < self._keep:
            self.kept.append(letter)
        if self._count > self._stop_at:
            message = (
                f"{self._count} rows of partition {self._partition} failed for good, so "
                f"the task fails; the last: {letter}"
            )
            raise self._error(message)
