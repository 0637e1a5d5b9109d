"""The values of a column that Python compares like the database, by which rows are sorted. Pure.

1. Rows that may conflict are written in the order of their key, so that two sessions that write
   common keys do not wait for each other. Rows of one key keep the order of the batch.
2. So the keys of rows are sorted only if equal keys of the database are neighbours then. For text
   of MySQL and MariaDB, whose usual collations ignore case and trailing spaces, these are also
   ignored here; such text is sorted only if it consists of characters that no known collation
   confuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.types import TypeEngine


_TYPES: dict[str, type] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "MEDIUMINT", "INTEGER", "BIGINT"), int),
    "DATE": date,
    "VARBINARY": bytes,
}
_BY_LETTERS = re.compile(
    r"(?:ascii|latin1|utf8|utf8mb3|utf8mb4)_"
    r"(?:bin|nopad_bin|(?:general|unicode|unicode_520|swedish)(?:_nopad)?_ci)"
    r"|(?:utf8mb[34]_)?(?:uca1400|0900)_a[is]_c[is]|utf8mb4_0900_bin"
)
"""Collations of MySQL and MariaDB that differ in case and accents only, for `_LETTERS`."""
_LETTERS = re.compile(r"[A-Za-z0-9 _.:/@+-]*")


@dataclass(frozen=True, slots=True)
class SqlOrder:
    """The values of a column that can be sorted here."""

    kind: type
    most: int | None = None
    """Maximum length: the database may cut spaces off longer text."""

    def sort_keys(self, values: Sequence[Any]) -> Sequence[Any] | None:
        """The values by which rows are sorted, in which equal keys are equal; `None` if they cannot
        be sorted here.
        """
        if {*map(type, values)} != {self.kind}:
            return None
        if self.kind is not str:
            return values
        if self.most is not None and max(map(len, values)) > self.most:
            return None
        if _LETTERS.fullmatch("".join(values)) is None:
            return None
        return [value.rstrip(" ").lower() for value in values]


def order_of(kind: TypeEngine[Any], collation: str | None) -> SqlOrder | None:
    """The values of a column of MySQL that can be sorted here; `None` if there are none."""
    from sqlalchemy import String

    if collation is not None:
        is_known = _BY_LETTERS.fullmatch(collation) is not None
        length = kind.length if isinstance(kind, String) else None
        return SqlOrder(str, length) if is_known else None
    python = _TYPES.get(type(kind).__name__)
    return None if python is None else SqlOrder(python)
