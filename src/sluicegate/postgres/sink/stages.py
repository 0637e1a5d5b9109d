"""Stages of a PostgreSQL table: one table per attempt, moved into the target in one transaction.

1. A stage has the target's columns, defaults, checks and unique indexes, so a row that violates
   these fails alone, in the task. A conflict that depends on other rows (of another stage or of the
   target, a foreign key, a trigger) fails the whole epoch, and nothing is published.
2. Names show a stage's origin: `sluicegate_<application and target>_<version>_<attempt>`. No other
   table is ever dropped.
3. An orphan that is still being written is left for the next collection: dropping it would wait for
   that attempt.
4. Each stage is moved by its own statement, since `ON CONFLICT` refuses one key twice in a
   statement.
5. The moved rows are compared with the tasks' *inventories* in the same transaction. An inventory is
   the number of rows and the order-independent sum of their hashes, from one statement on the
   server. Rows are hashed by their types' own functions. If a type has no hash function (JSON, XML,
   points), the binary form is hashed, which no session setting changes, unlike the text form, which
   depends on `DateStyle` or `TimeZone`. If a type has neither (`seg`), the rows are only counted.
   The digest names the method.
6. If conflicts are merged, the number of rows in a stage proves nothing. The epoch's *mark* shows
   whether rows may have been lost while a stage was written. It names the server's *timeline*,
   which changes when a standby is promoted, and, if a crash can lose rows, also a *marker*: an
   unlogged table with one row, which crash recovery empties together with unlogged stages.
7. An epoch that replaces a *partition* deletes its rows and moves the stages in one transaction, so
   that readers see the old rows or the new ones. The table stays, with everything that depends on
   it.
8. If the target was altered after a stage was created, moving the rows would cast them. So both
   must have the same columns.
"""

# ruff: noqa: S608  # text is put into statements here and nowhere else: names by `quoted`

from __future__ import annotations

import hashlib
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import StagesLost
from ..._core.logs import for_log
from ..._core.sink import WriteResult
from ..._core.staging import Begun, OpenStage, Stage
from ..client.errors import (
    LOCK_NOT_AVAILABLE,
    classify_postgres,
    sqlstate,
)
from ..client.names import quoted
from ..client.statements import BEGIN
from .swap import Swap, check_overwrite, check_rights
from .transaction import TIMELINE, timeline

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.errors import ErrorClass
    from ..._core.sink import Capabilities, WriteResult
    from ..._core.staging import Epoch, Progress
    from ..._core.transaction import Committed, Counts, Unit
    from ..client.statements import Statements
    from .open_table import OpenTable
    from .plan import TablePlan


# text is put into statements here and nowhere else: names by `quoted`


logger = logging.getLogger("sluicegate.postgres")

ORDER = "sluicegate_order"
"""The column that numbers a stage's rows if their order is kept."""
_STAGES = (
    "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid "
    "= c.relnamespace"
    " WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname ~ ('^' || $2 || "
    "'[0-9]+_[0-9a-f]{8}$')"
)
_PATIENCE = "SET LOCAL lock_timeout = '200ms'"
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
_ALTERED = """
    SELECT s.name, w.name AS "column", pg_catalog.format_type(a.atttypid, a.atttypmod) AS staged, pg_catalog.format_type(b.atttypid, b.atttypmod) AS there
    FROM unnest($1::text[], $2::text[]) AS s(name, path) CROSS JOIN unnest($3::text[]) AS w(name)
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = to_regclass(s.path) AND a.attname = w.name AND NOT a.attisdropped
    LEFT JOIN pg_catalog.pg_attribute b ON b.attrelid = to_regclass($4) AND b.attname = w.name AND NOT b.attisdropped
    WHERE (a.atttypid, a.atttypmod) IS DISTINCT FROM (b.atttypid, b.atttypmod)
"""


class TableStages:
    """The stages of an open table."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table
        self._connections = table.connections
        self._is_unlogged = table.settings.stages == "unlogged"

    @property
    def _plan(self) -> TablePlan:
        return self._table.plan

    @asynccontextmanager
    async def stage(self, epoch: Epoch) -> AsyncGenerator[OpenStage]:
        """A new stage of `epoch`, dropped after an exception or a cancellation."""
        plan = self._plan
        name = _new_name(plan, epoch.unit)
        creation = _creation(plan, name, ordered=epoch.ordered, unlogged=self._is_unlogged)
        async with self._connections.lent() as con:
            await con.execute(creation)
        sink = StageSink(self._table.at(name))
        try:
            yield OpenStage(sink, partial(self._inventory, name, sink))
        except BaseException:
            within = LOOP_CLOCK.now() + self._table.settings.access.close_timeout
            with suppress(Exception):  # if this fails, it is collected as an orphan
                async with LOOP_CLOCK.timeout_at(within), self._connections.lent() as con:
                    await con.execute(f"DROP TABLE IF EXISTS {at(plan, name)}")
            raise

    async def _inventory(self, name: str, sink: StageSink) -> Stage:
        async with self._connections.lent() as con:
            found = await inventory(con, self._connections.statements, self._plan, name)
        if self._plan.mode == "error" and found.rows != sink.rows:
            raise StagesLost(
                f"the stage {name} has {found.rows} rows, but {sink.rows} were written into it"
            )
        return found

    async def begin(self, epoch: Epoch) -> Begun:
        """Drop orphaned stages of the epoch; return its earlier commit, or a mark for `publish`.

        Suspends. Raises `ConfigError` if the role lacks a right that the epoch needs, or if an
        overwrite would break or lose something that belongs to the table.
        """
        plan, statements = self._plan, self._connections.statements
        place = self._table.settings.access.place
        async with self._connections.lent() as con, statements.block(con):
            await check_rights(con, plan.table, epoch, place)
        before = await self._find_publication(epoch.unit)
        async with self._connections.lent() as con:
            if epoch.overwrite and before is None:
                async with statements.block(con):
                    if epoch.partition:
                        await con.fetch(
                            f"SELECT FROM {plan.table.qualified} WHERE {_within(plan, epoch)} LIMIT 0",
                            *_values(epoch),
                        )
                    else:
                        await check_overwrite(con, plan.table)
            await self._collect(con, epoch.unit, older=False)
            if before is not None:
                return Begun(before)
            marker, is_durable = _new_name(plan, epoch.unit), not self._is_unlogged
            mark = await leave_mark(con, statements, plan, marker, is_durable=is_durable)
            return Begun(None, mark)

    async def _find_publication(self, unit: Unit) -> Committed | None:
        found: Committed | None = None
        with suppress(_OnlyLooking):
            async with self._table.transaction(unit) as within:
                found = within.committed
                raise _OnlyLooking
        return found

    async def publish(
        self, epoch: Epoch, stages: Sequence[Stage], counts: Counts, mark: str
    ) -> Committed | None:
        """Move the stages into the table, or into a new one that replaces it, in one transaction.

        Suspends. Returns the earlier commit of the epoch, if there is one. Raises `StagesLost` if
        the stages differ from their inventories, and `UniqueViolationError` and any other error of
        the server; nothing is published then.
        """
        plan = self._plan
        if epoch.progress is not None:
            async with self._connections.lent() as con:
                await self._table.progress.make(con)
        async with self._table.transaction(epoch.unit) as transaction:
            before = transaction.committed
            if before is None:
                con = transaction.connection
                if epoch.progress is not None:
                    await self._table.progress.store(con, epoch.progress)
                replaced = await _publish(con, plan, epoch, stages, mark)
                if replaced is not None:
                    ledger = self._table.settings.ledger
                    await ledger.follow(con, plan.table.qualified, replaced)
                transaction.record(counts)
        try:
            async with self._connections.lent() as con:
                await self._collect(con, epoch.unit, older=True)
        except Exception as error:  # the epoch is already published
            logger.warning(
                "stages of %s, or of earlier versions, could not be dropped: %s",
                epoch.unit.name,
                for_log(error),
            )
        return before

    async def discard(self, epoch: Epoch) -> None:
        """Drop the epoch's mark, and those of its stages that are not being written. Suspends."""
        async with self._connections.lent() as con:
            await self._collect(con, epoch.unit, older=False)

    async def _collect(self, con: PoolConnectionProxy[Any], unit: Unit, *, older: bool) -> None:
        """Drop the remaining unused stages of this version, and of `older` ones if requested."""
        plan, prefix = self._plan, _prefix(self._plan, unit)
        async with self._connections.statements.block(con):
            found = await con.fetch(_STAGES, plan.table.schema, prefix)
        for row in found:
            name: str = row[0]
            version = int(name.removeprefix(prefix).partition("_")[0])
            if version == unit.version or (older and version < unit.version):
                await _drop(con, at(plan, name))


class _OnlyLooking(Exception):  # not an error: it rolls a transaction back
    pass


async def _publish(
    con: PoolConnectionProxy[Any], plan: TablePlan, epoch: Epoch, stages: Sequence[Stage], mark: str
) -> int | None:
    """Check and move the stages; return the oid of the replaced table, if there is one."""
    marker = await check_mark(con, plan, mark)
    await check_stages(con, plan, stages)
    replaced = await _move(con, plan, epoch, [at(plan, stage.name) for stage in stages])
    if marker is not None:
        await con.execute(f"DROP TABLE {at(plan, marker)}")
    return replaced


async def _move(
    con: PoolConnectionProxy[Any], plan: TablePlan, epoch: Epoch, paths: Sequence[str]
) -> int | None:
    if epoch.partition:
        await _clear_partition(con, plan, epoch, paths)
    swap = None
    if epoch.overwrite and not epoch.partition:
        swap = await Swap.begin(con, plan.table)
    target = plan if swap is None else replace(plan, table=swap.table)
    for path in paths:
        await con.execute(target.move_from(path, ORDER if epoch.ordered else None))
    for path in paths:
        await con.execute(f"DROP TABLE {path}")
    if swap is None:
        return None
    await swap.end(con)
    return swap.oid


async def _clear_partition(
    con: PoolConnectionProxy[Any], plan: TablePlan, epoch: Epoch, paths: Sequence[str]
) -> None:
    """Delete the rows of the epoch's partition, unless a staged row is outside of it.

    Readers are not blocked. Other replacements of the same partition wait, and then see these rows.
    """
    within, values = _within(plan, epoch), _values(epoch)
    for path in paths:
        if await con.fetchval(
            f"SELECT EXISTS (SELECT FROM {path} WHERE ({within}) IS NOT TRUE)", *values
        ):
            rule = "must be the values of all rows of df, but a row has others; nothing was written"
            raise bad("partition", dict(epoch.partition), rule)
    name = repr((plan.table.qualified, epoch.partition))
    await con.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", name)
    await con.execute(f"DELETE FROM {plan.table.qualified} WHERE {within}", *values)


def _within(plan: TablePlan, epoch: Epoch) -> str:
    """The condition for a row of the epoch's partition, with its values as parameters.

    A cast to a declared length would truncate a value.
    """
    places = iter(range(1, len(epoch.partition) + 1))
    return " AND ".join(
        f"{quoted(name)} IS NULL"
        if value is None
        else f"{quoted(name)} = ${next(places)}::text::{plan.table.column(name).loose}"
        for name, value in epoch.partition
    )


def _values(epoch: Epoch) -> list[str]:
    return [value for _, value in epoch.partition if value is not None]


def _prefix(plan: TablePlan, unit: Unit) -> str:
    whose = f"{unit.application}\0{plan.table.qualified}"
    return f"sluicegate_{hashlib.sha256(whose.encode()).hexdigest()[:12]}_"


def _new_name(plan: TablePlan, unit: Unit) -> str:
    return f"{_prefix(plan, unit)}{unit.version}_{uuid4().hex[:8]}"


def _creation(plan: TablePlan, name: str, *, ordered: bool, unlogged: bool) -> str:
    like = (
        "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES INCLUDING GENERATED "
        "INCLUDING IDENTITY INCLUDING STORAGE"
    )
    order = f", {ORDER} bigint GENERATED ALWAYS AS IDENTITY" if ordered else ""
    kind = "UNLOGGED TABLE" if unlogged else "TABLE"
    return f"CREATE {kind} {at(plan, name)} (LIKE {plan.table.qualified} {like}{order})"


async def _drop(con: PoolConnectionProxy[Any], path: str) -> None:
    try:
        await con.execute(f"{BEGIN}; {_PATIENCE}; DROP TABLE IF EXISTS {path}; COMMIT")
    except Exception as error:
        await con.execute("ROLLBACK")
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise


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
                return await _sum_up(con, plan, name, kind)
        except Exception as error:
            if sqlstate(error) == NO_TABLE:
                raise StagesLost(f"the stage {name} is gone ({error})") from error
            if sqlstate(error) != _NO_FUNCTION:
                raise
    raise AssertionError("counting needs no function")


async def _sum_up(con: PoolConnectionProxy[Any], plan: TablePlan, name: str, kind: str) -> Stage:
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
        found = await _sum_up(con, plan, stage.name, stage.digest.partition(" ")[0])
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


async def check_mark(con: PoolConnectionProxy[Any], plan: TablePlan, mark: str) -> str | None:
    """Raise `StagesLost` if the server crashed or was replaced since `mark`; return its marker.

    Runs in the publishing transaction.
    """
    began_on, _, marker = mark.partition(" ")
    if began_on and (now := await con.fetchval(TIMELINE)) != began_on:
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


class TableProgress:
    """The progress of incremental runs into an open table."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table

    async def read(self, application: str) -> Progress:
        """Return the progress. Suspends."""
        connections = self._table.connections
        async with connections.lent() as con, connections.statements.block(con):
            return await self._table.progress.read(con, application)

    async def store(self, progress: Progress) -> None:
        """Replace the progress. Suspends."""
        async with self._table.connections.lent() as con:
            await self._table.progress.make(con)
            await self._table.progress.store(con, progress)


class StageSink:
    """Writes into a stage as an open `PostgresSink` writes into its table, and counts its rows."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table
        self.rows = 0
        """The number of delivered items."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the sink, without transactions."""
        return replace(self._table.settings.capabilities, transactional=False)

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by its SQLSTATE."""
        return classify_postgres(error)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch` as a row of the stage."""
        result = await self._table.store(batch)
        self.rows += len(batch) - (0 if result is None else len(result.errors))
        return result

    def __repr__(self) -> str:
        return repr(self._table.settings)
