"""Creation of a table at its first use: the ledger, the positions, the state.

The first attempt that needs the table creates it. A concurrent one finds it created, or created
meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._core.checks import bad
from ...client.errors import sqlstate

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

_NO_TABLE = "42P01"
_MADE_MEANWHILE = frozenset({"23505", "42P07", "42710"})
_ANOTHER_TABLE = frozenset({"42703", "42P10", "42804", "42809"})


async def create_missing(
    con: PoolConnectionProxy[Any], error: Exception, option: str, table: str, statement: str
) -> None:
    """Create the table that `error` reports missing.

    Suspends; ends the open transaction. Raises `ConfigError`, with the statement to run, if the
    role lacks the privilege, and for a table of another shape. Raises `error` in any other case.
    """
    state = sqlstate(error)
    if state in _ANOTHER_TABLE:
        rule = f"is a table of another shape ({error}); name another table"
        raise bad(option, table, rule) from error
    if state != _NO_TABLE:
        raise error
    await con.execute("ROLLBACK")
    await make_table(con, option, table, statement)


async def make_table(
    con: PoolConnectionProxy[Any], option: str, table: str, statement: str
) -> None:
    """Create a table, unless another session creates it meanwhile.

    Raises `ConfigError`, with the statement to run, if the role lacks the privilege.
    """
    try:
        await con.execute(statement)
    except Exception as error:
        state = sqlstate(error)
        if state in _MADE_MEANWHILE:
            return
        if state is not None and state[:2] in {"42", "3F"}:
            rule = f"cannot be created ({error}); have it created with: {statement}"
            raise bad(option, table, rule) from error
        raise
