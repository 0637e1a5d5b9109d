"""Rows in the driver's form, and their results. Pure.

Assignment of returned columns to their items.

1. No database guarantees that `RETURNING` keeps the order of the rows. SQLAlchemy's
   `sort_by_parameter_order` sorts by a generated number, or matches a key, or sends row by row.
2. Here returned rows are matched by the unique key within the columns, with the values that the
   driver was given.
3. If that does not identify each row, each one has its own statement: there is no such key, several
   rows have NULL in it, or the database returns other values than it was given.

Which values of a column Python compares like the database. Pure.

1. Rows that may conflict are written in the order of their key, so that two sessions that write
   common keys do not wait for each other. It is the same order as that of `PostgresSink`. Rows of
   one key keep the order of the batch.
2. So the keys of rows are sorted only if equal keys of the database are neighbours then. For text
   of MySQL and MariaDB, whose usual collations ignore case and trailing spaces, these are also
   ignored here; such text is sorted only if it consists of characters that no known collation
   confuses.
3. Keys and versions are compared here only if Python certainly gives the database's answer.
   Otherwise the database compares them: all rows are written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .._core.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, CursorResult
    from sqlalchemy.types import TypeEngine


VALUE_SIZE = 24
"""Maximum size, in bytes, of the literal for a value other than text or bytes."""
_TYPES: dict[str, type] = {
    "SMALLINT": int,
    "INTEGER": int,
    "BIGINT": int,
    "DATE": date,
}
_OF_POSTGRES: dict[str, type] = {
    "BYTEA": bytes,
    "TEXT": str,
    "TIMESTAMP": datetime,
    "UUID": UUID,
    "VARCHAR": str,
}
_OF_MYSQL: dict[str, type] = {"MEDIUMINT": int, "TINYINT": int, "VARBINARY": bytes}
_BY_BYTES = frozenset({None, "C", "POSIX", "default", "ucs_basic"})
"""Collations of PostgreSQL by which only equal bytes are equal, as in the database's own."""
_BY_LETTERS = re.compile(
    r"(?:ascii|latin1|utf8|utf8mb3|utf8mb4)_"
    r"(?:bin|nopad_bin|(?:general|unicode|unicode_520|swedish)(?:_nopad)?_ci)"
    r"|(?:utf8mb[34]_)?(?:uca1400|0900)_a[is]_c[is]|utf8mb4_0900_bin"
)
"""Collations of MySQL and MariaDB that differ in case and accents only, for `_LETTERS`."""
_LETTERS = re.compile(r"[A-Za-z0-9 _.:/@+-]*")


@dataclass(slots=True)
class SqlRow:
    """A row in the driver's form."""

    index: int
    values: Sequence[Any]
    key: object
    """The batcher's key."""
    is_maybe: bool
    """Whether an earlier attempt has an unknown outcome."""

    @property
    def least_size(self) -> int:
        """Minimum size as literals, in bytes."""
        return sum([len(value) for value in self.values if isinstance(value, (str, bytes))])

    @property
    def most_size(self) -> int:
        """Maximum size as literals, in bytes, with every character escaped or of two bytes."""
        return sum(
            [
                2 * len(value) + 4 if isinstance(value, (str, bytes)) else VALUE_SIZE
                for value in self.values
            ]
        )


@dataclass(slots=True)
class SqlAnswer:
    """The results of rows, by the indices of their items; other rows are delivered."""

    errors: dict[int, BaseException] = field(default_factory=dict[int, BaseException])
    outcomes: dict[int, Outcome] = field(default_factory=dict[int, Outcome])
    details: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    """The returned columns of stored rows."""


def divide(rows: Sequence[SqlRow], most: int, largest: int | None) -> list[list[SqlRow]]:
    """Divide rows into one part per statement, with at most `most` rows and about `largest` bytes
    each.
    """
    if largest is None:
        return [[*rows[at : at + most]] for at in range(0, len(rows), most)]
    parts: list[list[SqlRow]] = []
    size = 0
    for row in rows:
        size += (own := row.most_size)
        if not parts or len(parts[-1]) >= most or size > largest // 2:
            parts.append([])
            size = own
        parts[-1].append(row)
    return parts


def all_values(rows: Sequence[SqlRow]) -> tuple[Any, ...]:
    """The parameters of the statement for these rows."""
    return tuple([value for row in rows for value in row.values])


def are_below(values: Sequence[Any], size: int) -> bool:
    """Whether the rows of these values certainly have fewer bytes; faster than a check of each row."""
    texts = sum([len(value) for value in values if isinstance(value, (str, bytes))])
    return 2 * texts + VALUE_SIZE * len(values) <= size


# -- returned columns ------------------------------------------------------------------------------


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


# -- order -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SqlOrder:
    """The values of a column that can be sorted here."""

    kind: type
    is_exact: bool = True
    """Whether Python also tells which values are equal."""
    most: int | None = None
    """Maximum length: the database may cut spaces off longer text."""
    zone: Any = None

    def compares(self, values: Sequence[Any]) -> bool:
        """Whether Python and the database compare these values alike."""
        return self.is_exact and self._has(values)

    def sort_keys(self, values: Sequence[Any]) -> Sequence[Any] | None:
        """The values by which rows are sorted, in which equal keys are equal; `None` if they cannot
        be sorted here.
        """
        if not self._has(values):
            return None
        if self.is_exact:
            return values
        if _LETTERS.fullmatch("".join(values)) is None:
            return None
        return [value.rstrip(" ").lower() for value in values]

    def _has(self, values: Sequence[Any]) -> bool:
        if {*map(type, values)} != {self.kind}:
            return False
        if self.kind is datetime:
            return all(value.tzinfo is self.zone for value in values)
        return self.most is None or max(map(len, values)) <= self.most


def order_of(kind: TypeEngine[Any], dialect: str, collation: str | None) -> SqlOrder | None:
    """The values of a column that can be sorted here; `None` if there are none."""
    from sqlalchemy import DateTime, String
    from sqlalchemy.dialects.postgresql import TIMESTAMP

    name, length = type(kind).__name__, kind.length if isinstance(kind, String) else None
    if dialect == "mysql":
        if collation is not None:
            is_known = _BY_LETTERS.fullmatch(collation) is not None
            return SqlOrder(str, is_exact=False, most=length) if is_known else None
        found = _OF_MYSQL.get(name)
    elif dialect == "sqlite":
        found = None  # a column may have any collation, which is not reported
    else:
        own = kind.collation if isinstance(kind, String) else None
        is_cut = isinstance(kind, TIMESTAMP) and kind.precision is not None
        found = None if is_cut or own not in _BY_BYTES else _OF_POSTGRES.get(name)
    python = found or _TYPES.get(name)
    if python is None:
        return None
    zone = UTC if isinstance(kind, DateTime) and kind.timezone else None
    return SqlOrder(python, most=length if python is str else None, zone=zone)
