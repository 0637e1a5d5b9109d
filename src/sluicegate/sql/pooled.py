"""Prepared statements behind a pooler in transaction mode, which gives the statements of a client to
any server process.

The drivers name their statements by a counter, so clients have statements of the same names. Rows of
one sink could be written by the statement of another, into another table, and be reported as stored.

1. psycopg prepares nothing behind a pooler.
2. asyncpg always prepares, so it is refused unless the pooler keeps statements per client under names
   of its own.
3. The mode of a pooler cannot be found out. In transaction mode, too, a client has the same server
   again while no other client takes it; the settings are shown to administrators only, and a reload
   changes them. So the user tells that the mode is session, which is safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .._core.classify import classified
from .._core.errors import ConfigError, ErrorClass
from .errors import classify_sql

if TYPE_CHECKING:
    from sqlalchemy import Connection


_SESSION = (
    "if the pooler works in session mode only (pool_mode = session), pass prepared_statements=True"
)


def set_up_driver(dbapi: Any) -> None:
    """Let a new connection of psycopg prepare no statements if there is a pooler."""
    driver = getattr(dbapi, "driver_connection", dbapi)
    if hasattr(driver, "prepare_threshold"):
        cursor = dbapi.cursor()
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
        cursor.close()
        dbapi.rollback()
        if pid != driver.info.backend_pid:
            driver.prepare_threshold = None


def check_pooler(con: Connection) -> None:
    """Raise `ConfigError` if there is a pooler that mixes up the statements of its clients."""
    driver: Any = con.connection.driver_connection
    told = "url: there is a pooler in front of the database, and"
    if hasattr(driver, "prepare_threshold"):
        if driver.prepare_threshold is not None and _is_pooled(con, driver.info.backend_pid):
            rule = (
                f"psycopg prepares statements; set prepare_threshold=None in the engine; {_SESSION}"
            )
            raise ConfigError(f"{told} {rule}")
    elif (
        con.dialect.driver == "asyncpg"
        and _is_pooled(con, driver.get_server_pid())
        and _keeps_own_names(con)
    ):
        rule = (
            "asyncpg prepares statements, by names that other clients have too; use "
            "postgresql+psycopg, or let the pooler keep prepared statements (PgBouncer from 1.21 "
            f"on: max_prepared_statements); {_SESSION}"
        )
        raise ConfigError(f"{told} {rule}")


def _is_pooled(con: Connection, pid: int) -> bool:
    """Whether the server process is another one than the driver was told."""
    return con.exec_driver_sql("SELECT pg_backend_pid()").scalar() != pid


def _keeps_own_names(con: Connection) -> bool:
    """Whether the server has statements under the names that asyncpg gives them, or has lost one."""
    probe = f"sluicegate_{uuid4().hex}"
    query = f"SELECT name FROM pg_prepared_statements WHERE statement LIKE '%{probe}%'"  # noqa: S608  # a literal
    try:
        names = con.exec_driver_sql(query).scalars().all()  # itself
    except Exception as error:
        if classified(error, classify_sql) is not ErrorClass.TRANSIENT:
            raise
        return True
    return not names or names[0].startswith("__asyncpg_")
