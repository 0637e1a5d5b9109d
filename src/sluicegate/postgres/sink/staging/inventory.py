"""Checks that an epoch's stages are complete: inventories, columns, and the mark of a crash.

1. An inventory is the number of rows and the order-independent sum of their hashes, from one
   statement on the server. Rows are hashed by their types' own functions. If a type has no hash
   function (JSON, XML, points), the binary form is hashed, which no session setting changes, unlike
   the text form, which depends on `DateStyle` or `TimeZone`. If a type has neither (`seg`), the
   rows are only counted. The digest names the method.
2. If conflicts are merged, the number of rows in a stage proves nothing. The epoch's mark shows
   whether rows may have been lost while a stage was written. It names the server's *timeline*,
   which changes when a standby is promoted, and, if a crash can lose rows, also a *marker*: an
   unlogged table with one row, which crash recovery empties together with unlogged stages.
3. If the target was altered after a stage was created, moving the rows would cast them. So both
   must have the same columns.
"""

# ruff: noqa: S608  # text is put into statements here and nowhere else: names by `quoted`

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._core.errors import StagesLost
from ...._core.staging import Stage
from ...client.errors import is_from_server, is_lost, sqlstate
from ...client.names import quoted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ...client.statements import Statements
    from ..plan.plan import TablePlan

NO_TABLE = "42P01"
SHOWN = 5
"""Maximum number of faults listed in an error."""
_NO_FUNCTION = "42883"
_ROW = "sluicegate_row"
_SUMS = {
    "hash": f"sum(hash_record_extended({_ROW}.*, 0))",
    "binary": f"sum(hashtextextended(encode(record_send({_ROW}.*), 'hex'), 0))",
    "count": "0",
}
"""Checksums of rows, in order of preference."""
_TIMELINE = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"
_ALTERED = """
    SELECT s.name, w.name AS "column", pg_catalog.format_type(a.atttypid, a.atttypmod) AS staged, pg_catalog.format_type(b.atttypid, b.atttypmod) AS there
    FROM unnest($1::text[], $2::text[]) AS s(name, path) CROSS JOIN unnest($3::text[]) AS w(name)
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = to_regclass(s.path) AND a.attname = w.name AND NOT a.attisdropped
    LEFT JOIN pg_catalog.pg_attribute b ON b.attrelid = to_regclass($4) AND b.attname = w.name AND NOT b.attisdropped
    WHERE (a.atttypid, a.atttypmod) IS DISTINCT FROM (b.atttypid, b.atttypmod)
"""


def at(plan: TablePlan, name: str) -> str:
    """The quoted path of a stage, in the schema of its target."""
    return f"{quoted(plan.table.schema)}.{quoted(name)}"


async def inventory(
    con: PoolConnectionProxy[Any], statements: Statements, plan: TablePlan, name: str
) -> Stage:
    """Take the inventory of a stage. Raises `StagesLost` if it is gone."""
    for kind in _SUMS:
        try:
            async with statements.block(con):
                return await _summed(con, plan, name, kind)
        except Exception as error:
            if sqlstate(error) == NO_TABLE:
                raise StagesLost(f"the stage {name} is gone ({error})") from error
            if sqlstate(error) != _NO_FUNCTION:
                raise
    raise AssertionError("counting needs no function")


async def _summed(con: PoolConnectionProxy[Any], plan: TablePlan, name: str, kind: str) -> Stage:
    found = await con.fetchrow(
        f"SELECT count(*) AS rows, coalesce({_SUMS[kind]}, 0)::text AS total FROM "
        f"{at(plan, name)} AS {_ROW}"
    )
    assert found is not None
    return Stage(name=name, rows=found["rows"], digest=f"{kind} {found['total']}")


async def check_stages(
    con: PoolConnectionProxy[Any], plan: TablePlan, stages: Sequence[Stage]
) -> None:
    """Raise `StagesLost` unless the stages match their inventories and have the target's columns.

    Runs in the publishing transaction, whose locks keep the stages and the target's columns
    unchanged.
    """
    if not stages:
        return
    try:
        await con.execute(
            f"LOCK TABLE {', '.join(at(plan, stage.name) for stage in stages)} IN ACCESS "
            "EXCLUSIVE MODE"
        )
    except Exception as error:
        if sqlstate(error) != NO_TABLE:
            raise
        raise StagesLost(f"a stage is gone ({error})") from error
    await con.execute(f"SELECT FROM {plan.table.qualified} LIMIT 0")
    faults = [fault async for fault in _faults(con, plan, stages)]
    if faults:
        more = [] if len(faults) <= SHOWN else [f"and {len(faults) - SHOWN} more"]
        raise StagesLost("; ".join([*faults[:SHOWN], *more]))


async def _faults(
    con: PoolConnectionProxy[Any], plan: TablePlan, stages: Sequence[Stage]
) -> AsyncIterator[str]:
    names = [stage.name for stage in stages]
    target = plan.table.qualified
    for row in await con.fetch(
        _ALTERED, names, [at(plan, name) for name in names], plan.columns, target
    ):
        types = f"{row['staged'] or 'missing'} there and {row['there'] or 'missing'} in {target}"
        yield (
            f"the stage {row['name']} was created before {target} was altered: its column "
            f"{row['column']} is {types}"
        )
    for stage in stages:
        found = await _summed(con, plan, stage.name, stage.digest.partition(" ")[0])
        if found.rows != stage.rows:
            yield f"the stage {stage.name} has {found.rows} of {stage.rows} rows"
        elif found != stage:
            yield (
                f"the stage {stage.name} has {found.rows} rows, but not those that were "
                "written into it"
            )


# -- marks -----------------------------------------------------------------------------------------


async def leave_mark(
    con: PoolConnectionProxy[Any],
    statements: Statements,
    plan: TablePlan,
    marker: str,
    *,
    is_durable: bool,
) -> str:
    """Leave the mark of a new epoch, with a `marker` table unless stored rows survive a crash."""
    async with statements.block(con):
        began_on = await timeline(con)
    if is_durable and await _waits_for_disk(con, statements):
        return began_on
    await con.execute(f"CREATE UNLOGGED TABLE {at(plan, marker)} AS SELECT 1 AS mark")
    return f"{began_on} {marker}"


async def _waits_for_disk(con: PoolConnectionProxy[Any], statements: Statements) -> bool:
    async with statements.block(con):
        return bool(await con.fetchval("SELECT current_setting('synchronous_commit') <> 'off'"))


async def timeline(con: PoolConnectionProxy[Any]) -> str:
    """The server's timeline; empty if the server does not reveal it, as on some managed services."""
    try:
        return str(await con.fetchval(_TIMELINE))
    except Exception as error:
        if is_lost(error) or not is_from_server(error):
            raise
        return ""


async def check_mark(con: PoolConnectionProxy[Any], plan: TablePlan, mark: str) -> str | None:
    """Raise `StagesLost` if the server crashed or was replaced since `mark`; return its marker.

    Runs in the publishing transaction.
    """
    began_on, _, marker = mark.partition(" ")
    if began_on and (now := await con.fetchval(_TIMELINE)) != began_on:
        raise StagesLost(
            "rows may be lost from any stage: a standby was promoted since the write began "
            f"(timeline {began_on}, now {now})"
        )
    if marker and not await _is_marked(con, plan, marker):
        raise StagesLost(
            "rows may be lost from any stage: the server has crashed since the write began, "
            "and emptied its unlogged tables"
        )
    return marker or None


async def _is_marked(con: PoolConnectionProxy[Any], plan: TablePlan, marker: str) -> bool:
    try:
        return bool(await con.fetchval(f"SELECT count(*) FROM {at(plan, marker)}"))
    except Exception as error:
        if sqlstate(error) != NO_TABLE:
            raise
        return False
