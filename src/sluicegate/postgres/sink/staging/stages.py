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
5. The moved rows are compared with the tasks' inventories in the same transaction (`inventory`).
   Until then a crash of the server empties unlogged stages without notice.
"""

# text is put into statements here and nowhere else: names by `quoted`

from __future__ import annotations

import hashlib
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ...._core.checks import bad
from ...._core.clock import LOOP_CLOCK
from ...._core.errors import StagesLost
from ...._core.logs import for_log
from ...._core.staging import Begun, OpenStage
from ...client.errors import LOCK_NOT_AVAILABLE, NO_PRIVILEGE, sqlstate
from ...client.names import quoted
from ...client.statements import BEGIN
from .inventory import at, check_mark, check_stages, inventory, leave_mark
from .stage_sink import CountingSink, StageSink
from .swap import Swap, check_overwrite

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ...._core.staging import Epoch, Stage
    from ...._core.transaction import Committed, Counts, Unit
    from ..open_table import OpenTable
    from ..plan.plan import TablePlan

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


class Stages:
    """The stages of an open table; the methods are documented in `PostgresSink`."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table
        self._connections = table.connections
        self._is_unlogged = table.settings.stages == "unlogged"

    @property
    def _plan(self) -> TablePlan:
        return self._table.plan

    @asynccontextmanager
    async def stage(self, epoch: Epoch) -> AsyncGenerator[OpenStage]:
        """Create a stage."""
        plan = self._plan
        name = _new_name(plan, epoch.unit)
        creation = _creation(plan, name, ordered=epoch.ordered, unlogged=self._is_unlogged)
        async with self._connections.lent() as con:
            await _create(con, plan, creation)
        counting = CountingSink(StageSink(self._table.at(name)))
        try:
            yield OpenStage(counting, partial(self._inventory, name, counting))
        except BaseException:
            within = LOOP_CLOCK.now() + self._table.settings.close_timeout
            with suppress(Exception):  # if this fails, it is collected as an orphan
                async with LOOP_CLOCK.timeout_at(within), self._connections.lent() as con:
                    await con.execute(f"DROP TABLE IF EXISTS {at(plan, name)}")
            raise

    async def _inventory(self, name: str, counting: CountingSink) -> Stage:
        async with self._connections.lent() as con:
            found = await inventory(con, self._connections.statements, self._plan, name)
        if self._plan.mode == "error" and found.rows != counting.rows:
            raise StagesLost(
                f"the stage {name} has {found.rows} rows, but {counting.rows} were written into it"
            )
        return found

    async def begin(self, epoch: Epoch) -> Begun:
        """Collect orphans and leave a mark, unless the epoch was already published."""
        plan, statements = self._plan, self._connections.statements
        before = await self._published(epoch.unit)
        async with self._connections.lent() as con:
            if epoch.overwrite and before is None:
                async with statements.block(con):
                    await check_overwrite(con, plan.table)
            await self._collect(con, epoch.unit, older=False)
            if before is not None:
                return Begun(before)
            marker, is_durable = _new_name(plan, epoch.unit), not self._is_unlogged
            mark = await leave_mark(con, statements, plan, marker, is_durable=is_durable)
            return Begun(None, mark)

    async def _published(self, unit: Unit) -> Committed | None:
        found: Committed | None = None
        with suppress(_OnlyLooking):
            async with self._table.transaction(unit) as within:
                found = within.committed
                raise _OnlyLooking
        return found

    async def publish(
        self, epoch: Epoch, stages: Sequence[Stage], counts: Counts, mark: str
    ) -> Committed | None:
        """Move the stages into the target."""
        plan = self._plan
        async with self._table.transaction(epoch.unit) as transaction:
            before = transaction.committed
            if before is None:
                con = transaction.connection
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
        """Drop the epoch's stages."""
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
    swap = await Swap.begin(con, plan.table) if epoch.overwrite else None
    target = plan if swap is None else replace(plan, table=swap.table)
    for path in paths:
        await con.execute(target.moved(path, ORDER if epoch.ordered else None))
    for path in paths:
        await con.execute(f"DROP TABLE {path}")
    if swap is None:
        return None
    await swap.end(con)
    return swap.oid


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


async def _create(con: PoolConnectionProxy[Any], plan: TablePlan, creation: str) -> None:
    try:
        await con.execute(creation)
    except Exception as error:
        if sqlstate(error) != NO_PRIVILEGE:
            raise
        rights = (
            f"grant the role CREATE on schema {quoted(plan.table.schema)} and SELECT on the table"
        )
        raise bad(
            "delivery",
            "atomic",
            f"requires additional tables in the schema of {plan.table.qualified}, which cannot be "
            f"created ({error}); {rights}",
        ) from error


async def _drop(con: PoolConnectionProxy[Any], path: str) -> None:
    try:
        await con.execute(f"{BEGIN}; {_PATIENCE}; DROP TABLE IF EXISTS {path}; COMMIT")
    except Exception as error:
        await con.execute("ROLLBACK")
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
