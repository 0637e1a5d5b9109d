"""The columns that the database returns for stored rows, each assigned to the item of its row. Pure.

1. No database guarantees that `RETURNING` keeps the order of the rows. SQLAlchemy's
   `sort_by_parameter_order` sorts by a generated number, or matches a key, or sends row by row.
2. Here returned rows are matched by the unique key within the columns, with the values that the
   driver was given.
3. If that does not identify each row, each one has its own statement: there is no such key, several
   rows have NULL in it, or the database returns other values than it was given.
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
    """The columns that a sink returns; may be empty."""

    names: tuple[str, ...]
    types: tuple[TypeEngine[Any], ...]
    key_places: tuple[int, ...]
    """The places of the key in a row; empty if there is no key."""
    selected: str
    """The quoted names of the key and the columns."""
    quoted: tuple[str, ...]
    """The quoted names of the columns."""

    def by_key(
        self, con: Connection, result: CursorResult[Any], *, width: int | None = None
    ) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Each row's key (or its first `width` values), as returned by the driver, and its columns,
        as converted by SQLAlchemy.
        """
        assert result.cursor is not None, "the statement returns rows"
        width = len(self.key_places) if width is None else width
        description = result.cursor.description
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

    def match(
        self, con: Connection, rows: Sequence[SqlRow], result: CursorResult[Any]
    ) -> dict[int, dict[str, Any]] | None:
        """The columns by the item's index; `None` if they cannot be assigned with certainty.

        Of several rows with the same key, the first one is stored, unless a later one replaces it.
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
