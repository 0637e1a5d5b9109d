"""The rows of one write: which of them are written, and which together.

1. A row that cannot be written is refused before; in a batch with keys, those behind it are left out.
2. Of several rows of a key, the last one is written where rows are replaced; with a version, the last of
   the highest version.
3. Where a row is to blame, all of them are written, one after the other: those before a last one that is
   refused count.
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
    """The rows of one write, and what has become of them."""

    def __init__(self, plan: SqlPlan, rows: Sequence[SqlRow]) -> None:
        self._plan = plan
        self.answer = SqlAnswer()
        self._stopped: set[object] = set()
        self._given, self._values = rows, all_values(rows)
        self.rows = self._fitting(rows)

    @property
    def commits_alone(self) -> bool:
        """Whether one statement, which commits by itself, has all of it."""
        plan = self._plan
        is_plain = plan.target.mode != "error" or not any(row.is_maybe for row in self.rows)
        most = plan.most_rows
        if plan.returned.names:
            most = 1  # of several ones, what is returned may not tell which is whose
        return is_plain and 0 < len(self.rows) <= most and self._largest is None

    def alone(self) -> tuple[str, tuple[Any, ...]]:
        """The statement for all rows, and its parameters."""
        rows = self.latest(self.rows)
        values = self._values if rows is self._given else all_values(rows)
        return self._plan.insert(len(rows)), values

    def refuse(self, row: SqlRow, error: BaseException) -> None:
        """Fail a row, and those behind it of its key."""
        self.answer.errors[row.index] = error
        self.answer.details.pop(row.index, None)  # the COMMIT was refused
        if row.key is not None:
            self._stopped.add(row.key)

    def is_stopped(self, row: SqlRow) -> bool:
        """Whether an earlier row of its key was refused: then it is left out."""
        if row.key is None or row.key not in self._stopped:
            return False
        if row.index not in self.answer.errors:
            self.answer.errors[row.index] = KeyStopped("an earlier item of its key has failed")
        return True

    def _fitting(self, rows: Sequence[SqlRow]) -> Sequence[SqlRow]:
        """The rows that can be written; the others are refused."""
        most, version = self._plan.limits.size, self._plan.version_place
        if self._plan.dialect.unfit(self._values) is not None:
            rows = self._without_unfit(rows)
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
                self.refuse(row, PermanentError("a row without a version replaces no other"))
            elif not self.is_stopped(row):
                kept.append(row)
        return kept

    def _without_unfit(self, rows: Sequence[SqlRow]) -> list[SqlRow]:
        kept: list[SqlRow] = []
        for row in rows:
            if (value := self._plan.dialect.unfit(row.values)) is not None:
                self.refuse(row, PermanentError(f"a {type(value).__name__} cannot be bound"))
            elif not self.is_stopped(row):
                kept.append(row)
        return kept

    def parts(self, rows: Sequence[SqlRow]) -> list[list[SqlRow]]:
        """Rows for one statement each."""
        return parted(rows, self._plan.most_rows, self._largest)

    def latest(self, rows: Sequence[SqlRow]) -> Sequence[SqlRow]:
        """Of several rows of a key the one that counts, where rows are replaced."""
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
        """All rows in order, cut so that a key is there once in each, where rows are replaced."""
        if self._plan.target.mode != "update":
            return [[*rows]]
        self.latest(rows)  # refuses what cannot be compared
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
        """Leave what a row returned out that a later one of its key has replaced."""
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
        """Whether a row has a lower version, or one that cannot be compared, and is refused."""
        try:
            return bool(row.values[at] < other.values[at])
        except TypeError as error:
            told = f"the version cannot be compared with an earlier one of its key: {error}"
            self.refuse(row, PermanentError(told))
            return True
