"""The differences between databases: limits, upserts, checks when opening.

Each class is stateless.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from .._core.checks import bad

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection


TEMPORARY = "sluicegate_compared"
"""The temporary table of rows to compare."""
_JSON_VALID = re.compile(r"json_valid\(`(.+)`\)", re.IGNORECASE)
_NO_BACKSLASHES = "NO_BACKSLASH_ESCAPES"
_UTC = frozenset({"UTC", "+00:00", "GMT", "Etc/UTC"})


class SqlLimits(NamedTuple):
    """The limits of one statement."""

    parameters: int
    size: int | None
    """Approximate size in bytes; `None` if no batch would reach the limit."""


class SqlDialect:
    """A database and its SQL."""

    name = ""
    is_single_writer = False
    """Whether the database allows one writer at a time."""
    begin = "BEGIN"
    """The statement that begins a transaction."""
    insert = "INSERT"
    """The beginning of an insertion."""
    drop_temporary = f"DROP TABLE IF EXISTS temp.{TEMPORARY}"
    """Drop the temporary table of rows to compare, if it exists."""

    def temporary(self, query: str) -> str:
        """Create the temporary table with the columns of a query, whose first one is a whole
        number.
        """
        return f"CREATE TEMPORARY TABLE {TEMPORARY} AS {query}"

    def limits(self, con: Connection) -> SqlLimits:
        """Read the limits of this connection."""
        raise NotImplementedError

    def check_session(self, con: Connection, table: str, schema: str | None) -> None:
        """Raise `ConfigError` for a table or session that would silently change or lose rows."""

    def set_up(self, dbapi: Any) -> None:
        """Set up a new connection of the sink's own engine."""

    def doubt(self, con: Connection) -> str | None:
        """The reason why the session would silently change values, for a warning."""
        del con
        return None

    def is_utc(self, con: Connection) -> bool:
        """Whether the session's time zone is UTC, if it matters."""
        del con
        return True

    def describe(
        self, con: Connection, table: str, schema: str | None
    ) -> Sequence[tuple[Any, ...]]:
        """The table's columns and their types, for comparison; a single fast query."""
        raise NotImplementedError

    def json_columns(self, con: Connection, table: str, schema: str | None) -> Collection[str]:
        """JSON columns that SQLAlchemy does not report as such."""
        del con, table, schema
        return ()

    def collations(self, con: Connection, table: str, schema: str | None) -> Mapping[str, str]:
        """The collations of columns that SQLAlchemy does not report."""
        del con, table, schema
        return {}

    def unique_keys(
        self, con: Connection, table: str, schema: str | None
    ) -> Sequence[tuple[str, ...]]:
        """The unique keys of a table besides the primary key, by column names."""
        from sqlalchemy import inspect

        found = inspect(con).get_indexes(table_name=table, schema=schema)
        keys = [each["column_names"] for each in found if each["unique"]]
        return [tuple(map(str, each)) for each in keys if None not in each]

    def ignore(self, quoted: Sequence[str], key: Sequence[str] | None) -> str:
        """The clause that leaves an existing row unchanged."""
        target = "" if key is None else f" ({', '.join(key)})"
        del quoted
        return f" ON CONFLICT{target} DO NOTHING"

    def update(
        self, table: str, key: Sequence[str], columns: Sequence[str], version: str | None
    ) -> str:
        """The clause that replaces an existing row; with a version, only a row with a lower version
        or with none.
        """
        if not columns:
            return self.ignore(key, key)
        sets = ", ".join(f"{each} = excluded.{each}" for each in columns)
        newer = ""
        if version is not None:
            newer = f" WHERE {table}.{version} IS NULL OR {table}.{version} < excluded.{version}"
        return f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sets}{newer}"


class Sqlite(SqlDialect):
    """SQLite, in a file."""

    name = "sqlite"
    is_single_writer = True
    begin = "BEGIN IMMEDIATE"
    insert = "INSERT OR ABORT"
    """Overrides `ON CONFLICT IGNORE` and `REPLACE` of constraints, which drop rows without an error."""

    def limits(self, con: Connection) -> SqlLimits:
        """The limit of the library, from the driver if available."""
        driver = con.connection.driver_connection
        ask = getattr(driver, "getlimit", None)
        parameters = 999 if ask is None else ask(9)  # SQLITE_LIMIT_VARIABLE_NUMBER
        return SqlLimits(parameters, None)

    def describe(
        self, con: Connection, table: str, schema: str | None
    ) -> Sequence[tuple[Any, ...]]:
        """The number of schema changes of the file."""
        del table
        name = (
            "" if schema is None else con.dialect.identifier_preparer.quote_identifier(schema) + "."
        )
        return [tuple(row) for row in con.exec_driver_sql(f"PRAGMA {name}schema_version")]

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


# -- MySQL and MariaDB -----------------------------------------------------------------------------


class MySql(SqlDialect):
    """MySQL and MariaDB."""

    name = "mysql"
    drop_temporary = f"DROP TEMPORARY TABLE IF EXISTS {TEMPORARY}"

    def temporary(self, query: str) -> str:
        """With a primary key, since sql_require_primary_key may be on."""
        return f"CREATE TEMPORARY TABLE {TEMPORARY} (o INT PRIMARY KEY) {query}"

    def limits(self, con: Connection) -> SqlLimits:
        """The server's `max_allowed_packet`, which also applies to drivers that send literals; the
        lower one of this connection and of new ones.
        """
        query = "SELECT LEAST(@@SESSION.max_allowed_packet, @@GLOBAL.max_allowed_packet)"
        return SqlLimits(65_535, int(con.exec_driver_sql(query).one()[0]))

    def describe(
        self, con: Connection, table: str, schema: str | None
    ) -> Sequence[tuple[Any, ...]]:
        """The columns of the information schema, and the limit of a statement."""
        found = con.exec_driver_sql(
            "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, EXTRA, @@GLOBAL.max_allowed_packet "
            "FROM information_schema.COLUMNS "
            "WHERE TABLE_NAME = %s AND TABLE_SCHEMA = COALESCE(%s, DATABASE()) "
            "ORDER BY ORDINAL_POSITION",
            (table, schema),
        )
        return [tuple(row) for row in found]

    def doubt(self, con: Connection) -> str | None:
        """A session that is not strict, as of an engine of the user."""
        mode = con.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar()
        if "STRICT_ALL_TABLES" in str(mode) or "STRICT_TRANS_TABLES" in str(mode):
            return None
        return (
            "its sessions are not strict, so the database truncates values that do not fit and "
            "reports success; set sql_mode to STRICT_ALL_TABLES in the engine, or pass a URL"
        )

    def is_utc(self, con: Connection) -> bool:
        """By the names that mean UTC."""
        query = "SELECT IF(@@SESSION.time_zone = 'SYSTEM', @@system_time_zone, @@SESSION.time_zone)"
        return str(con.exec_driver_sql(query).scalar()) in _UTC

    def check_session(self, con: Connection, table: str, schema: str | None) -> None:
        """Raise `ConfigError` for a storage engine without transactions, and for a session that
        reads the literals of drivers in another way.
        """
        mode = str(con.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar())
        if _NO_BACKSLASHES in mode:
            rule = (
                f"has sessions with the sql_mode {_NO_BACKSLASHES}, for which drivers do not quote"
            )
            raise bad("url", "an engine", f"{rule}; remove it in the engine, or pass a URL")
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
        zero; store 0 in an `AUTO_INCREMENT` column as 0; and read backslashes as the drivers write
        them.
        """
        cursor = dbapi.cursor()
        cursor.execute(
            "SET SESSION sql_mode = CONCAT_WS(',', NULLIF(REPLACE(@@SESSION.sql_mode, "
            f"'{_NO_BACKSLASHES}', ''), ''), 'STRICT_ALL_TABLES', "
            "'NO_AUTO_VALUE_ON_ZERO')"
        )
        cursor.close()

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

    def collations(self, con: Connection, table: str, schema: str | None) -> Mapping[str, str]:
        """Of the information schema."""
        found = con.exec_driver_sql(
            "SELECT COLUMN_NAME, COLLATION_NAME FROM information_schema.COLUMNS WHERE "
            "TABLE_NAME = %s AND TABLE_SCHEMA = COALESCE(%s, DATABASE()) "
            "AND COLLATION_NAME IS NOT NULL",
            (table, schema),
        )
        return {row[0]: row[1] for row in found}

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
            newer = f"{table}.{version} IS NULL OR {table}.{version} < VALUES({version})"
            ordered = [*(each for each in columns if each != version), version]
            sets = [f"{each} = IF({newer}, VALUES({each}), {table}.{each})" for each in ordered]
        return f" ON DUPLICATE KEY UPDATE {', '.join(sets)}"


# -- the supported databases -----------------------------------------------------------------------

_KNOWN = {"sqlite": Sqlite(), "mysql": MySql(), "mariadb": MySql()}


def dialect_of(name: str) -> SqlDialect:
    """The dialect with this SQLAlchemy name. Raises `ConfigError` for any other database."""
    found = _KNOWN.get(name)
    if found is None:
        other = "use PostgresSink" if name == "postgresql" else "write your own sink for others"
        raise bad("url", name, f"must be MySQL, MariaDB or SQLite; {other}")
    return found
