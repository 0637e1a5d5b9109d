"""The shape of the ledger's table: its creation, and the alteration of a table of the first shape.

1. The first attempt that needs the table creates or alters it; others wait for the lock, check
   again, and find it done.
2. An alteration is one transaction. Attempts of the first release in progress end before it, and
   later ones fail with an error, since the unique key that they use no longer exists.
3. A row of the first shape does not name the table of its unit. Its `target` is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._core.checks import bad
from ...client.errors import is_gone, sqlstate
from ...client.names import quoted
from ...client.statements import BEGIN, rolled_back

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

COUNTS = ("rows", "delivered", "duplicate", "dead_lettered", "failed")
KEY = ("application", "version", "part", "target")

_FIRST = {
    "application": "text",
    "version": "bigint",
    "part": "int",
    "parts": "int NOT NULL",
    "rule": "text NOT NULL",
    **dict.fromkeys((*COUNTS, "letters_held"), "bigint NOT NULL DEFAULT 0"),
    "begun_at": "timestamptz NOT NULL DEFAULT now()",
}
_ADDED = {
    "target": "text NOT NULL DEFAULT ''",
    "target_oid": "oid NOT NULL DEFAULT 0",
    "types": "text NOT NULL DEFAULT ''",
    "content_of": "text NOT NULL DEFAULT ''",
    "content": "bigint",
}
_FIRST_KEY = KEY[:3]
NO_TABLE = "42P01"
_MADE_MEANWHILE = frozenset({"23505", "42P07", "42710"})
ANOTHER_TABLE = frozenset({"42703", "42P10", "42804", "42809"})
_SHAPE = """SELECT
    (SELECT array_agg(attname::text) FROM pg_catalog.pg_attribute
        WHERE attrelid = pg_catalog.to_regclass($1) AND attnum > 0 AND NOT attisdropped) AS columns,
    (SELECT array_agg(a.attname::text ORDER BY k.place) FROM unnest(c.conkey) WITH ORDINALITY AS k(attnum, place)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum) AS key,
    c.conname AS constraint
    FROM pg_catalog.pg_constraint c WHERE c.conrelid = pg_catalog.to_regclass($1) AND c.contype = 'p'
"""


def creation(ledger: str) -> str:
    """The statement that creates the table."""
    columns = ", ".join(f"{name} {kind}" for name, kind in (_FIRST | _ADDED).items())
    return f"CREATE TABLE IF NOT EXISTS {ledger} ({columns}, PRIMARY KEY ({', '.join(KEY)}))"


def alteration(ledger: str, constraint: str) -> str:
    """The statement that completes a table of the first shape, whose primary key has this name."""
    added = ", ".join(f"ADD COLUMN {name} {kind}" for name, kind in _ADDED.items())
    return (
        f"ALTER TABLE {ledger} {added}, DROP CONSTRAINT {quoted(constraint)}, ADD PRIMARY "
        f"KEY ({', '.join(KEY)})"
    )


async def put_right(con: PoolConnectionProxy[Any], ledger: str, new: str, error: Exception) -> None:
    """Create the table that `error` reports missing, as `new`, or alter a table of the first shape.

    Suspends; ends the open transaction. Raises `ConfigError`, with the statement to run, if the
    role lacks the privilege, and for a table of another shape. Raises `error` in any other case.
    """
    state = sqlstate(error)
    if state not in ANOTHER_TABLE | {NO_TABLE}:
        raise error
    await con.execute("ROLLBACK")
    if state == NO_TABLE:
        await make_table(con, "ledger", new, creation(new))
    elif await _is_old(con, ledger, error):
        await _alter(con, ledger, error)


async def _is_old(con: PoolConnectionProxy[Any], ledger: str, error: Exception) -> bool:
    async with rolled_back(con):
        return await _needed(con, ledger, error) is not None


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
        if _is_not_allowed(state):
            rule = f"cannot be created ({error}); have it created with: {statement}"
            raise bad(option, table, rule) from error
        raise


async def _alter(con: PoolConnectionProxy[Any], ledger: str, error: Exception) -> None:
    await con.execute(f"{BEGIN}; LOCK TABLE {ledger} IN ACCESS EXCLUSIVE MODE")
    try:
        statement = await _needed(con, ledger, error)
        if statement is not None:
            await _altered(con, ledger, statement)
    except Exception:
        if not is_gone(con):
            await con.execute("ROLLBACK")
        raise
    await con.execute("COMMIT")


async def _altered(con: PoolConnectionProxy[Any], ledger: str, statement: str) -> None:
    try:
        await con.execute(statement)
    except Exception as error:
        if _is_not_allowed(sqlstate(error)):
            raise bad(
                "ledger",
                ledger,
                f"is of an earlier shape and cannot be altered ({error}); have its owner run: "
                f"{statement}",
            ) from error
        raise


async def _needed(con: PoolConnectionProxy[Any], ledger: str, error: Exception) -> str | None:
    """The alteration that the table needs; `None` if the shape is current.

    Raises `ConfigError` for a table of another shape.
    """
    found = await con.fetchrow(_SHAPE, ledger)
    columns, key = (
        (set(found["columns"]), tuple(found["key"])) if found is not None else (set[str](), ())
    )
    if found is not None and columns == set(_FIRST) and key == _FIRST_KEY:
        return alteration(ledger, found["constraint"])
    if columns >= set(_FIRST) | set(_ADDED) and key == KEY:
        return None
    raise bad(
        "ledger",
        ledger,
        f"is a table of another shape ({error}); name another table",
    ) from error


def _is_not_allowed(state: str | None) -> bool:
    return state is not None and state[:2] in {"42", "3F"}
