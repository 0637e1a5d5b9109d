"""MySQL and MariaDB."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .._core.checks import bad
from .dialects import TEMPORARY, SqlDialect, SqlLimits

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection

    from .._core.values.rows import RowTarget

_JSON_VALID = re.compile(r"json_valid\(`(.+)`\)", re.IGNORECASE)
_NO_BACKSLASHES = "NO_BACKSLASH_ESCAPES"
_UTC = frozenset({"UTC", "+00:00", "GMT", "Etc/UTC"})


class MySql(SqlDialect):
    """MySQL and MariaDB."""

    name = "mysql"
    shown = "MySQL or MariaDB"
    drop_temporary = f"DROP TEMPORARY TABLE IF EXISTS {TEMPORARY}"

    def rights(self, target: RowTarget) -> Sequence[str]:
        """A conflict that is ignored also updates its row."""
        if target.mode == "error":
            return super().rights(target)
        return ["INSERT", "UPDATE", "SELECT"]

    def temporary(self, query: str) -> str:
        """With a primary key, since sql_require_primary_key may be on."""
        return f"CREATE TEMPORARY TABLE {TEMPORARY} (o INT PRIMARY KEY) {query}"

    def limits(self, con: Connection) -> SqlLimits:
        """The server's `max_allowed_packet`, which also applies to drivers that send literals; the
        lower one of this connection and of new ones.
        """
        query = "SELECT LEAST(@@SESSION.max_allowed_packet, @@GLOBAL.max_allowed_packet)"
        return SqlLimits(65_535, int(con.exec_driver_sql(query).one()[0]))

    def told(self, con: Connection, table: str, schema: str | None) -> Sequence[tuple[Any, ...]]:
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
        reads asyncmy's literals in another way.
        """
        mode = str(con.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar())
        if _NO_BACKSLASHES in mode and con.dialect.driver == "asyncmy":
            rule = f"has sessions with the sql_mode {_NO_BACKSLASHES}, for which asyncmy does not quote"
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

    def check_returning(self, con: Connection, target: RowTarget) -> None:
        """Also refuse cases in which MariaDB returns unchanged rows."""
        super().check_returning(con, target)
        if target.mode == "ignore" or target.version is not None:
            rule = (
                'MariaDB would also return unchanged rows: use on_conflict="error", or "update" '
                "without a version"
            )
            raise bad("returning", target.returning, rule)

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
