"""The differences between databases: limits, upserts, checks when opening.

Databases without a dialect here are refused by name. Each class is stateless.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core.checks import bad

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

    from ..._clients.row_target import RowTarget

_JSON_VALID = re.compile(r"json_valid\(`(.+)`\)", re.IGNORECASE)


_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_CONTAINERS = (dict, list, tuple, set, frozenset)


def _is_unfit(kind: type[Any]) -> bool:
    own: Any = kind.__str__
    return issubclass(kind, _CONTAINERS) or own is object.__str__


class SqlLimits(NamedTuple):
    """The limits of one statement."""

    parameters: int
    size: int | None
    """Approximate size in bytes; `None` if no batch would reach the limit."""


class SqlDialect:
    """A database and its SQL."""

    name = ""
    shown = ""
    """The database's name in messages."""
    is_single_writer = False
    """Whether the database allows one writer at a time."""
    begin = "BEGIN"
    """The statement that begins a transaction."""
    at_once: str | None = None
    """The statement that makes deferred constraints immediate."""

    def limits(self, con: Connection) -> SqlLimits:
        """Read the limits of this connection."""
        raise NotImplementedError

    def check_session(self, con: Connection, table: str, schema: str | None) -> None:
        """Raise `ConfigError` for a table or session that would silently change or lose rows."""

    def check_returning(self, con: Connection, target: RowTarget) -> None:
        """Raise `ConfigError` if stored rows cannot be returned, or cannot be distinguished from
        others.
        """
        if not con.dialect.insert_returning:
            told = ".".join(map(str, con.dialect.server_version_info or ()))
            rule = f"needs INSERT ... RETURNING, which this {self.shown} {told} does not have"
            raise bad("returning", target.returning, rule)

    def set_up(self, dbapi: Any) -> None:
        """Set up a new connection."""

    def unfit(self, values: Sequence[Any]) -> Any:
        """The first value that the drivers would silently change; `None` if there is none."""
        del values

    def json_columns(self, con: Connection, table: str, schema: str | None) -> Collection[str]:
        """JSON columns that SQLAlchemy does not report as such."""
        del con, table, schema
        return ()

    def unique_keys(
        self, con: Connection, table: str, schema: str | None
    ) -> Sequence[tuple[str, ...]]:
        """The unique keys of a table besides the primary key, by column names."""
        from sqlalchemy import inspect

        look = inspect(con)
        keys = [
            tuple(each["column_names"])
            for each in look.get_unique_constraints(table_name=table, schema=schema)
        ]
        for index in look.get_indexes(table_name=table, schema=schema):
            columns = index["column_names"]
            options: Any = index.get("dialect_options", {})
            is_partial = any(
                name.endswith("_where") and value is not None for name, value in options.items()
            )
            if index["unique"] and None not in columns and not is_partial:
                keys.append(tuple(str(each) for each in columns))
        return keys

    def ignore(self, quoted: Sequence[str], key: Sequence[str] | None) -> str:
        """The clause that leaves an existing row unchanged."""
        target = "" if key is None else f" ({', '.join(key)})"
        del quoted
        return f" ON CONFLICT{target} DO NOTHING"

    def update(
        self, table: str, key: Sequence[str], columns: Sequence[str], version: str | None
    ) -> str:
        """The clause that replaces an existing row; with a version, only a row with a lower
        version.
        """
        if not columns:
            return self.ignore(key, key)
        sets = ", ".join(f"{each} = excluded.{each}" for each in columns)
        newer = "" if version is None else f" WHERE {table}.{version} < excluded.{version}"
        return f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sets}{newer}"


class PostgreSql(SqlDialect):
    """PostgreSQL, with any driver."""

    name = "postgresql"
    shown = "PostgreSQL"
    at_once = "SET CONSTRAINTS ALL IMMEDIATE"

    def limits(self, con: Connection) -> SqlLimits:
        """The protocol's limit; some drivers allow half of it."""
        del con
        return SqlLimits(32_767, None)


class Sqlite(SqlDialect):
    """SQLite, in a file."""

    name = "sqlite"
    shown = "SQLite"
    is_single_writer = True
    begin = "BEGIN IMMEDIATE"

    def limits(self, con: Connection) -> SqlLimits:
        """The limit of the library, from the driver if available."""
        driver = con.connection.driver_connection
        ask = getattr(driver, "getlimit", None)
        parameters = 999 if ask is None else ask(9)  # SQLITE_LIMIT_VARIABLE_NUMBER
        return SqlLimits(parameters, None)

    def unique_keys(
        self, con: Connection, table: str, schema: str | None
    ) -> Sequence[tuple[str, ...]]:
        """The unique keys from the library: SQLAlchemy would parse the table's SQL text."""
        found = con.exec_driver_sql(
            "SELECT l.name, i.name FROM pragma_index_list(?1, ?2) l, pragma_index_info(l.name, ?2) i "
            'WHERE l."unique" AND NOT l.partial ORDER BY l.seq, i.seqno',
            (table, schema or "main"),
        )
        keys: dict[str, list[str | None]] = {}
        for index, column in found:
            keys.setdefault(index, []).append(column)
        return [tuple(map(str, each)) for each in keys.values() if None not in each]


class MySql(SqlDialect):
    """MySQL and MariaDB."""

    name = "mysql"
    shown = "MySQL or MariaDB"

    def limits(self, con: Connection) -> SqlLimits:
        """The server's `max_allowed_packet`, which also applies to drivers that send literals."""
        row = con.exec_driver_sql("SELECT @@max_allowed_packet").one()
        return SqlLimits(65_535, int(row[0]))

    def check_session(self, con: Connection, table: str, schema: str | None) -> None:
        """Raise `ConfigError` for an engine without transactions."""
        row = con.exec_driver_sql(
            "SELECT t.ENGINE, e.TRANSACTIONS FROM information_schema.TABLES t "
            "LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE "
            "WHERE t.TABLE_NAME = %s AND t.TABLE_SCHEMA = COALESCE(%s, DATABASE())",
            (table, schema),
        ).first()
        if row is not None and row[0] is not None and row[1] != "YES":
            rule = (
                f"has the engine {row[0]}, which has no transactions: a write that fails would leave "
                "a part of its rows; use InnoDB"
            )
            raise bad("table", table, rule)

    def set_up(self, dbapi: Any) -> None:
        """Refuse values that a column cannot hold, which would otherwise be truncated or set to
        zero.
        """
        cursor = dbapi.cursor()
        cursor.execute(
            "SET SESSION sql_mode = CONCAT_WS(',', NULLIF(@@SESSION.sql_mode, ''), 'STRICT_ALL_TABLES')"
        )
        cursor.close()

    def check_returning(self, con: Connection, target: RowTarget) -> None:
        """Also refuse cases in which MariaDB returns unchanged rows."""
        super().check_returning(con, target)
        if target.mode == "ignore" or target.version is not None:
            rule = (
                'MariaDB would also return unchanged rows: use on_conflict="error", or "update" '
                "without a version"
            )
            raise bad("returning", target.returning, rule)

    def unfit(self, values: Sequence[Any]) -> Any:
        """Drivers would send the text form of an object, such as its address, and only one element
        of some containers.
        """
        odd = {each for each in {*map(type, values)} - _PLAIN if _is_unfit(each)}
        return next((value for value in values if type(value) in odd), None) if odd else None

    def json_columns(self, con: Connection, table: str, schema: str | None) -> Collection[str]:
        """The JSON columns of MariaDB, which are text columns with a check."""
        if not getattr(con.dialect, "is_mariadb", False):
            return ()
        checks = con.exec_driver_sql(
            "SELECT CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS "
            "WHERE TABLE_NAME = %s AND CONSTRAINT_SCHEMA = COALESCE(%s, DATABASE())",
            (table, schema),
        )
        found = [_JSON_VALID.fullmatch(clause) for (clause,) in checks]
        return {each[1] for each in found if each is not None}

    def ignore(self, quoted: Sequence[str], key: Sequence[str] | None) -> str:
        """Set a column to its own value: `INSERT IGNORE` would also change values that do not fit."""
        del key
        return f" ON DUPLICATE KEY UPDATE {quoted[0]} = {quoted[0]}"

    def update(
        self, table: str, key: Sequence[str], columns: Sequence[str], version: str | None
    ) -> str:
        """Assignments take effect in order, so the version is last."""
        if not columns:
            return self.ignore(key, key)
        if version is None:
            sets = [f"{each} = VALUES({each})" for each in columns]
        else:
            newer = f"{table}.{version} < VALUES({version})"
            ordered = [*(each for each in columns if each != version), version]
            sets = [f"{each} = IF({newer}, VALUES({each}), {table}.{each})" for each in ordered]
        return f" ON DUPLICATE KEY UPDATE {', '.join(sets)}"


_KNOWN = {"postgresql": PostgreSql(), "sqlite": Sqlite(), "mysql": MySql(), "mariadb": MySql()}


def dialect_of(name: str) -> SqlDialect:
    """The dialect with this SQLAlchemy name. Raises `ConfigError` for any other database."""
    found = _KNOWN.get(name)
    if found is None:
        raise bad(
            "url",
            name,
            "must be PostgreSQL, MySQL, MariaDB or SQLite; write your own sink for other databases",
        )
    return found
