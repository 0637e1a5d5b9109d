"""The rows of one write: which of them are written, and how they are grouped.

1. A row that cannot be written is refused in advance; in a batch with keys, later rows of its key
   are left out.
2. If rows are replaced, only the last of several rows with the same key is written; with a version,
   the last one with the highest version.
3. If a row is at fault, all rows are written one after another, so earlier rows count even if the
   last row of their key is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.errors import KeyStopped, PermanentError, TooLargeError
from .rows import SqlAnswer, all_values, are_below, parted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plan import SqlPlan
    from .rows import SqlRow


class SqlBatch:
    """The rows of one write and their results."""

    def __init__(self, plan: SqlPlan, rows: Sequence[SqlRow]) -> None:
        self._plan = plan
        self.answer = SqlAnswer()
        self._stopped: set[object] = set()
        self._given, self._values = rows, all_values(rows)
        self.rows = self._fitting(rows)

    @property
    def commits_alone(self) -> bool:
        """Whether one statement, which commits by itself, can write all rows."""
        plan = self._plan
        is_plain = plan.target.mode != "error" or not any(row.is_maybe for row in self.rows)
        most = plan.most_rows
        if plan.returned.names:
            most = 1  # returned rows may not be attributable to several items
        return is_plain and 0 < len(self.rows) <= most and self._largest is None

    def alone(self) -> tuple[str, tuple[Any, ...]]:
        """The statement for all rows, with its parameters."""
        rows = self.latest(self.rows)
        values = self._values if rows is self._given else all_values(rows)
        return self._plan.insert(len(rows)), values

    def refuse(self, row: SqlRow, error: BaseException) -> None:
        """Fail a row, and later rows of its key."""
        self.answer.errors[row.index] = error
        self.answer.details.pop(row.index, None)  # of a refused COMMIT
        if row.key is not None:
            self._stopped.add(row.key)

    def is_stopped(self, row: SqlRow) -> bool:
        """Whether an earlier row of its key was refused, in which case this row is left out."""
        if row.key is None or row.key not in self._stopped:
            return False
        if row.index not in self.answer.errors:
            self.answer.errors[row.index] = KeyStopped("an earlier item of its key has failed")
        return True

    def _fitting(self, rows: Sequence[SqlRow]) -> Sequence[SqlRow]:
        """The rows that can be written; the others are refused."""
        most, version = self._plan.limits.size, self._plan.version_place
        if most is not None and are_below(self._values, most // 2):
            most = None
        self._largest = most
        if most is None and version is None:
            return rows
        kept: list[SqlRow] = []
        for row in rows:
            if most is not None and row.least_size > most:
                told = f"a row of more than {most:,} bytes, max_allowed_packet of the server"
                self.refuse(row, TooLargeError(told))
            elif version is not None and row.values[version] is None:
                self.refuse(row, PermanentError("a row without a version cannot replace another"))
            elif not self.is_stopped(row):
                kept.append(row)
        return kept

    def parts(self, rows: Sequence[SqlRow]) -> list[list[SqlRow]]:
        """The rows, divided into one part per statement."""
        return parted(rows, self._plan.most_rows, self._largest)

    def latest(self, rows: Sequence[SqlRow]) -> Sequence[SqlRow]:
        """If rows are replaced, only the row of each key that takes effect."""
        plan = self._plan
        if plan.target.mode != "update" or len(rows) < 2:
            return rows
        places, at = plan.key_places, plan.version_place
        latest: dict[tuple[Any, ...], SqlRow] = {}
        for row in rows:
            key = tuple(row.values[place] for place in places)
            before = latest.pop(key, None)
            is_older = at is not None and before is not None and self._is_older(row, before, at)
            latest[key] = before if is_older and before is not None else row
        return [*latest.values()] if len(latest) < len(rows) else rows

    def once(self, rows: Sequence[SqlRow]) -> list[list[SqlRow]]:
        """All rows in order; if rows are replaced, divided so that each part has a key only once."""
        if self._plan.target.mode != "update":
            return [[*rows]]
        self.latest(rows)  # refuses rows that cannot be compared
        found: list[list[SqlRow]] = [[]]
        keys: set[tuple[Any, ...]] = set()
        for row in rows:
            if row.index in self.answer.errors:
                continue
            key = tuple(row.values[place] for place in self._plan.key_places)
            if key in keys:
                found.append([])
                keys.clear()
            keys.add(key)
            found[-1].append(row)
        return found

    def forget_replaced(self, rows: Sequence[SqlRow]) -> None:
        """Drop the returned columns of rows that a later row of the same key has replaced."""
        details = self.answer.details
        if self._plan.target.mode == "update" and details:
            last = {
                tuple(row.values[at] for at in self._plan.key_places): row.index
                for row in rows
                if row.index in details
            }
            for index in details.keys() - {*last.values()}:
                del details[index]

    def _is_older(self, row: SqlRow, other: SqlRow, at: int) -> bool:
        """Whether a row has a lower version, or a version that cannot be compared and is refused."""
        try:
            return bool(row.values[at] < other.values[at])
        except TypeError as error:
            told = f"the version cannot be compared with that of an earlier row of its key: {error}"
            self.refuse(row, PermanentError(told))
            return True
