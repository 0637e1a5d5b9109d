"""The order in which the rows of a batch reach the server. Pure.

1. An `INSERT` locks the rows that it replaces, and the keys that it inserts, one after another. If
   two sessions write common keys in different orders, each may wait for the other: a deadlock. So
   rows that may conflict are sent in the order of their key, which depends on nothing but the
   table, and is the same for every statement and every service.
2. The order is that of the key's type, which never separates equal keys, whatever their spelling
   (`1.0` and `1.00`). Text whose equality is that of its bytes has the order of its bytes: it is
   cheaper than that of a collation, and the same in Python.
3. Rows of one key keep the order of the batch.
4. Statements that read from staging or arrays are sorted by the server (`PlanFacts.order`). Rows
   that are sent as parameters are sorted here if the Python type of each key certainly has the
   server's order, and by the server otherwise.
5. If a column that is not written takes the numbers of a sequence, rows keep the order of the batch,
   and so do the numbers.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..table import TableColumn
    from .values import Row

_LENGTH = re.compile(r"\((\d+)\)")
_NAIVE, _AWARE = "timestamp without time zone", "timestamp with time zone"
_TYPES: dict[str, type] = {
    "smallint": int,
    "integer": int,
    "bigint": int,
    "boolean": bool,
    "bytea": bytes,
    "date": date,
    "uuid": UUID,
    _NAIVE: datetime,
    _AWARE: datetime,
}
"""The PostgreSQL types whose values have the order of this Python type."""
_MOMENTS: frozenset[type] = frozenset({datetime})


def sorted_places(kinds: Sequence[KeyKind], keys: list[Any]) -> Sequence[int] | None:
    """The places of the rows in the order of their key, a value or a tuple of values; a range if
    they have this order, and `None` if only the server can sort them.
    """
    columns = [keys] if len(kinds) == 1 else zip(*keys, strict=True)
    for kind, values in zip(kinds, columns, strict=True):
        if not kind.has(values):
            return None
    places = range(len(keys))
    return places if sorted(keys) == keys else sorted(places, key=keys.__getitem__)


def arrange(rows: Sequence[Row], places: Sequence[int]) -> Sequence[Row]:
    """The rows in the order of their places."""
    return rows if isinstance(places, range) else [rows[place] for place in places]


class KeyKind(NamedTuple):
    """The values of a column of the key that Python and the server sort in the same order."""

    kinds: frozenset[type]
    most: int | None
    """Maximum length of text: the server may cut spaces off longer text."""
    zone: Any

    def has(self, values: Sequence[Any]) -> bool:
        """Whether all values are of this kind."""
        if not self.kinds.issuperset(map(type, values)):
            return False
        if self.most is not None:
            return max(map(len, values)) <= self.most
        if self.kinds is _MOMENTS:
            return all(value.tzinfo is self.zone for value in values)
        return True


def key_kinds(columns: Sequence[TableColumn]) -> list[KeyKind] | None:
    """The kinds of a key's columns; `None` if only the server can sort them."""
    found: list[KeyKind] = []
    for column in columns:
        kind, most = _TYPES.get(column.plain_type), None
        if column.is_bytewise:
            length = _LENGTH.fullmatch(column.exact.removeprefix(column.loose))
            kind, most = str, length and int(length[1])
            if length is None and not column.plain_type:  # a domain
                return None
        if kind is None:
            return None
        kinds = _MOMENTS if kind is datetime else frozenset({kind})
        found.append(KeyKind(kinds, most, UTC if column.identity == _AWARE else None))
    return found
