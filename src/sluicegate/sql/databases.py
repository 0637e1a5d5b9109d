"""The supported databases; any other one is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.checks import bad
from .dialects import PostgreSql, Sqlite
from .mysql import MySql

if TYPE_CHECKING:
    from .dialects import SqlDialect

_PREPARING = PostgreSql(is_examined=False)
_KNOWN = {"postgresql": PostgreSql(), "sqlite": Sqlite(), "mysql": MySql(), "mariadb": MySql()}


def dialect_of(name: str, *, prepares: bool = False) -> SqlDialect:
    """The dialect with this SQLAlchemy name. Raises `ConfigError` for any other database.

    With `prepares`, PostgreSQL's drivers prepare statements even behind a pooler.
    """
    found = _KNOWN.get(name)
    if found is None:
        raise bad(
            "url",
            name,
            "must be PostgreSQL, MySQL, MariaDB or SQLite; write your own sink for other databases",
        )
    return _PREPARING if prepares and found.name == _PREPARING.name else found
