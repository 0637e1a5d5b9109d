"""The rows of one write: which of them are written, and how they are grouped.

1. A row that cannot be written is refused in advance; in a batch with keys, later rows of its key
   are left out.
2. Rows of one key are written in the order of the batch, also by one statement, so the last one
   takes effect; with a version, the first one with the highest version.
3. Rows of different keys are written in the order of the key (see `order`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from .._core.errors import KeyStopped, PermanentError, TooLargeError, UnverifiableError
from .._core.values.rows import NULL_KEY
from .rows import SqlAnswer, all_values, are_below, divide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plan import SqlPlan
    from .rows import SqlRow


class SqlBatch:
    """The rows of one write and their results."""

    def __init__(self, plan: SqlPlan, rows: Sequence[SqlRow]) -> None:
        self._plan = plan
        self.answer = SqlAnswer()
        self._stopped: dict[object, int] = {}
        """The index of the first refused row of each key."""
        self.rows = self._fitting(rows)

    @property
    def commits_alone(self) -> bool:
        """Whether one statement, which commits by itself, can write all rows."""
        plan = self._plan
        is_plain = plan.target.mode != "error" or not any(row.is_maybe for row in self.rows)
        return is_plain and 0 < len(self.rows) <= plan.most_rows and self._largest is None

    def refuse(self, row: SqlRow, error: BaseException) -> None:
        """Fail a row, and later rows of its key."""
        self.answer.errors[row.index] = error
        if row.key is not None:
            self._stopped.setdefault(row.key, row.index)

    def is_stopped(self, row: SqlRow) -> bool:
        """Whether an earlier row of its key was refused, in which case this row is left out."""
        if row.key is None or self._stopped.get(row.key, row.index) >= row.index:
            return False
        if row.index not in self.answer.errors:
            self.answer.errors[row.index] = KeyStopped("an earlier item of its key has failed")
        return True

    def _fitting(self, rows: Sequence[SqlRow]) -> Sequence[SqlRow]:
        """The rows that can be written; the others are refused."""
        most, version = self._plan.limits.size, self._plan.version_place
        if most is not None and are_below(all_values(rows), most // 2):
            most = None
        self._largest = most
        key = self._plan.key_places if self._plan.target.mode != "error" else ()
        is_maybe = any(row.is_maybe for row in rows)
        if most is None and version is None and not is_maybe:
            return rows
        kept: list[SqlRow] = []
        for row in rows:
            if most is not None and row.least_size > most:
                told = f"a row of more than {most:,} bytes, max_allowed_packet of the server"
                self.refuse(row, TooLargeError(told))
            elif version is not None and row.values[version] is None:
                self.refuse(row, PermanentError("a row without a version cannot replace another"))
            elif row.is_maybe and None in [row.values[place] for place in key]:
                self.refuse(row, UnverifiableError(NULL_KEY))
            elif not self.is_stopped(row):
                kept.append(row)
        return kept

    def parts(self, rows: Sequence[SqlRow], *, more: int = 0) -> list[list[SqlRow]]:
        """The rows, divided into one part per statement; with `more` parameters for each row, a
        statement that returns nothing.
        """
        plan = self._plan
        most = plan.limits.parameters // (len(plan.quoted) + more) if more else plan.most_rows
        return divide(rows, max(1, most), self._largest)

    @cached_property
    def arranged(self) -> Sequence[SqlRow]:
        """The rows in the order in which they are written if none is at fault."""
        plan, rows = self._plan, self.rows
        if plan.keeps_arrival or not plan.key or len(rows) < 2:
            return rows
        columns: list[Sequence[Any]] = []
        for place in plan.key_places:
            order = plan.orders.get(place)
            values = None if order is None else order.sort_keys([row.values[place] for row in rows])
            if values is None:
                return rows
            columns.append(values)
        keys = columns[0] if len(columns) == 1 else [*zip(*columns, strict=True)]
        return [rows[place] for place in sorted(range(len(rows)), key=keys.__getitem__)]
