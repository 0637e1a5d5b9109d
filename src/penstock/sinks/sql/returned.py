"""Columns of stored rows, led back to their items.

1. No database promises that `RETURNING` answers in the order of the rows. SQLAlchemy's
   `sort_by_parameter_order` sorts by a generated number, or matches a key, or sends row by row.
2. Here returned rows are matched by the unique key within the columns, as the driver was given it.
3. Where that does not tell each row, each has a statement of its own: there is no
   such key, several rows hold NULL in it, or the database gives other values back than it was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, CursorResult
    from sqlalchemy.types import TypeEngine

    from .rows import SqlRow


@dataclass(frozen=True, slots=True)
class SqlReturned:
    """The columns that a sink returns; there may be none."""

    names: tuple[str, ...]
    types: tuple[TypeEngine[Any], ...]
    key_places: tuple[int, ...]
    """The places of the key in a row; none if there is no key."""
    selected: str
    """The key, and the columns, quoted."""

    def by_key(
        self, con: Connection, result: CursorResult[Any]
    ) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Each row's key, as the driver gives it, and its columns, as SQLAlchemy does."""
        assert result.cursor is not None, "the statement returns rows"
        width, description = len(self.key_places), result.cursor.description
        read = [
            kind.dialect_impl(con.dialect).result_processor(con.dialect, column[1])
            for kind, column in zip(self.types, description[width:], strict=True)
        ]
        found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for row in result.fetchall():
            values = [
                value if process is None else process(value)
                for value, process in zip(row[width:], read, strict=True)
            ]
            found.append((tuple(row[:width]), dict(zip(self.names, values, strict=True))))
        return found

    def matched(
        self, con: Connection, rows: Sequence[SqlRow], result: CursorResult[Any]
    ) -> dict[int, dict[str, Any]] | None:
        """The columns by the index of the item; `None` if they cannot be led back for certain.

        Of several rows of a key the first one is stored, where others do not replace it.
        """
        found = self.by_key(con, result)
        if len(rows) == 1:
            return {rows[0].index: found[0][1]} if found else {}
        places: dict[tuple[Any, ...], int] = {}
        for row in rows:
            key = tuple(row.values[at] for at in self.key_places)
            if not key:
                return None
            places.setdefault(key, row.index)
        details = {places.get(key, -1): columns for key, columns in found}
        return None if -1 in details or len(details) < len(found) else details
