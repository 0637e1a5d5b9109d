"""The results of a task: counts of its units, and the dead rows that it keeps, as lines of text.

Text travels both as rows of a DataFrame (`mapInArrow`) and in the commit messages of a data source.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..._core.staging import Stage
from ..content import as_int64
from ..report import DeadLettersError, DeadRow, SparkWriteReport, UnitReport

if TYPE_CHECKING:
    from collections.abc import Iterable

Line = tuple[str, str]
"""A kind (`unit`, `history`, `stage`, `content`, `refused` or `dead`) and its JSON."""
LINES = "kind string, json string"
"""The schema of lines as rows of a DataFrame."""
DEAD_ROWS_SHOWN = 20
"""Number of dead rows that a task returns for the message of an error."""
DEAD_ROWS_MARGIN = 1000
"""Number of dead rows beyond the allowed number after which a task fails."""


def to_json(value: object) -> str:
    """Encode the value as JSON; objects without a JSON form become text."""
    return json.dumps(value, default=str, ensure_ascii=False)


def read_report(lines: Iterable[Line]) -> SparkWriteReport:
    """Build the report from the lines of all tasks; rows of `LINES` are also accepted.

    Raises `DeadLettersError` for refused units.
    """
    units: list[UnitReport] = []
    dead: list[DeadRow] = []
    refused: set[int] = set()
    for kind, text in lines:
        found = json.loads(text)
        if kind == "unit":
            units.append(UnitReport(**found))
        elif kind == "dead":
            dead.append(DeadRow(**found))
        elif kind == "refused":
            refused.add(found)
    if refused:
        raise _refusal(refused, dead, committed=len(units))
    return SparkWriteReport(tuple(units), tuple(dead))


def read_stages(lines: Iterable[Line]) -> list[Stage]:
    """Return the stages to publish."""
    return [Stage(**json.loads(text)) for kind, text in lines if kind == "stage"]


def read_content(lines: Iterable[Line]) -> int:
    """Return the sum of the hashes of all staged rows."""
    return as_int64(sum(json.loads(text) for kind, text in lines if kind == "content"))


def read_histories(lines: Iterable[Line]) -> frozenset[str]:
    """Return the histories of the destination on which units were committed.

    More than one means that a standby took over in between.
    """
    return frozenset(json.loads(text) for kind, text in lines if kind == "history") - {""}


def _refusal(refused: set[int], dead: Iterable[DeadRow], *, committed: int) -> DeadLettersError:
    first = next(row for row in dead if row.partition in refused)
    return DeadLettersError(
        f"more rows than max_dead_letters failed for good in each of {len(refused)} buckets, "
        f"which were rolled back ({committed} others are "
        f"committed); the first: {first.error_type}: {first.message}"
    )


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
