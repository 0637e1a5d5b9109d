"""Stages of PostgreSQL: a table for each attempt, made like the target, and one transaction that
moves them into it.

1. A stage has the target's columns, defaults, checks and unique indexes, so a row that these refuse
   is refused in the task, alone. What can be known only beside the other rows (a conflict with
   another stage or with the target, a foreign key, a trigger) fails the epoch as a whole, and
   nothing is published.
2. Names say whose a stage is: `penstock_<application and target>_<version>_<attempt>`. Nothing else
   is ever dropped.
3. An orphan that somebody still writes into is left for the next time: dropping it would wait for
   that attempt.
4. Stages are moved one statement each, since `ON CONFLICT` refuses one key twice in a statement.
5. What is moved is compared with what the tasks have left there, in the same transaction; see
   `_postgres_inventory`. Until then a crash of the server empties unlogged stages, without a word.
"""

# text is put into statements here and nowhere else: names by `quoted`

from __future__ import annotations

import hashlib
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from ..._clients.postgres.errors import LOCK_NOT_AVAILABLE, NO_PRIVILEGE, sqlstate
from ..._core.checks import bad
from ..._core.decorator import WrappingSink
from ..._core.errors import StagesLost
from ..._core.result import WriteResult
from ..._core.send import send
from ..._core.staging import Begun, OpenStage
from ..._core.told import for_log
from .inventory import at, check_mark, check_stages, inventory, leave_mark
from .swap import Swap, check_overwrite
from .table import quoted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from typing import Self

    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.staging import Epoch, Stage
    from ..._core.transaction import Committed, Counts, Unit
    from .connections import Connections
    from .ledger import Ledger
    from .sql import Plan
    from .transaction import PostgresTransaction

logger = logging.getLogger("penstock.postgres")

ORDER = "penstock_order"
"""The column of a stage that numbers its rows, where their order is kept."""
_PATIENCE = "SET LOCAL lock_timeout = '200ms'"


class Stages:
    """The part of `PostgresSink` that has to do with stages; see `penstock._core.staging`."""

    if TYPE_CHECKING:
        _plan: Plan | None
        _ledger: Ledger
        _known_as: str | None
        _stages: str

        def _opened(self) -> tuple[Connections, Plan]: ...

        def transaction(self, unit: Unit | None) -> Any: ...

    @asynccontextmanager
    async def stage(self, epoch: Epoch) -> AsyncGenerator[OpenStage]:
        """A new stage of `epoch`; dropped when left by an exception or cancelled. Raises
        `ConfigError` where no table can be made.
        """
        connections, plan = self._opened()
        name = _new_name(plan, epoch.unit)
        async with connections.lent() as con:
            await _make(
                con,
                plan,
                _creation(plan, name, ordered=epoch.ordered, unlogged=self._stages == "unlogged"),
            )
        counted = _Counted(cast("Any", self._onto(name)))
        try:
            yield OpenStage(counted, partial(self._inventory, name, counted))
        except BaseException:
            with suppress(Exception):  # else it is an orphan, and collected as one
                async with connections.lent() as con:
                    await con.execute(f"DROP TABLE IF EXISTS {at(plan, name)}")
            raise

    def _onto(self, name: str) -> Self:
        """This open sink, on another table of the same columns."""
        _, plan = self._opened()
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made._plan = replace(plan, table=replace(plan.table, name=name))
        made._known_as = plan.table.qualified
        return made

    async def _inventory(self, name: str, counted: _Counted) -> Stage:
        connections, plan = self._opened()
        async with connections.lent() as con:
            found = await inventory(con, plan, name)
        if plan.mode == "error" and found.rows != counted.rows:
            raise StagesLost(
                f"the stage {name} has {found.rows} rows, and {counted.rows} were written into it"
            )
        return found

    async def begin(self, epoch: Epoch) -> Begun:
        """Collect what dead attempts of this epoch have left; return what was published of it, or
        else a mark for `publish`. Suspends.

        Raises `ConfigError` where an overwrite would break or lose something that belongs to the
        table.
        """
        connections, plan = self._opened()
        found: list[Committed] = []
        with suppress(_OnlyLooking):
            async with self.transaction(epoch.unit) as within:
                if within.committed is not None:
                    found.append(within.committed)
                raise _OnlyLooking
        async with connections.lent() as con:
            if epoch.overwrite and not found:
                await check_overwrite(con, plan.table)
            await _collect(con, plan, epoch.unit, older=False)
            if found:
                return Begun(found[0])
            return Begun(
                None,
                await leave_mark(
                    con, plan, _new_name(plan, epoch.unit), is_durable=self._stages == "logged"
                ),
            )

    async def publish(
        self, epoch: Epoch, stages: Sequence[Stage], counts: Counts, mark: str
    ) -> Committed | None:
        """Move these stages into the table, or into a new one that takes its place, in one
        transaction; return what was published before.

        Suspends. Raises `StagesLost` where they are not what the tasks have left,
        `UniqueViolationError` and whatever else the server refuses; nothing is published then.
        """
        connections, plan = self._opened()
        before: Committed | None = None
        async with self.transaction(epoch.unit) as within:
            transaction: PostgresTransaction = within
            before = transaction.committed
            if before is None:
                replaced = await _publish(transaction.connection, plan, epoch, stages, mark)
                if replaced is not None:
                    await self._ledger.follow(
                        transaction.connection, plan.table.qualified, replaced
                    )
                transaction.record(counts)
        try:
            async with connections.lent() as con:
                await _collect(con, plan, epoch.unit, older=True)
        except Exception as error:  # it is published
            logger.warning(
                "stages of %s, or of versions before it, are still there: %s",
                epoch.unit.name,
                for_log(error),
            )
        return before

    async def discard(self, epoch: Epoch) -> None:
        """Drop the stages of the epoch that are no longer written to, and its mark. Suspends."""
        connections, plan = self._opened()
        async with connections.lent() as con:
            await _collect(con, plan, epoch.unit, older=False)


class _Counted(WrappingSink[Any]):
    """Counts the rows that a stage was given for good."""

    rows = 0

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        errors = await send(self.inner, batch)
        self.rows += len(batch) - len(errors)
        return WriteResult.failed(batch, errors) if errors else None


class _OnlyLooking(Exception):  # no error: it leaves a transaction without a trace
    pass


async def _publish(
    con: PoolConnectionProxy[Any], plan: Plan, epoch: Epoch, stages: Sequence[Stage], mark: str
) -> int | None:
    """Check and move the stages; return the oid of the table that was replaced, if one was."""
    marker = await check_mark(con, plan, mark)
    await check_stages(con, plan, stages)
    replaced = await _move(con, plan, epoch, [at(plan, stage.name) for stage in stages])
    if marker is not None:
        await con.execute(f"DROP TABLE {at(plan, marker)}")
    return replaced


async def _move(
    con: PoolConnectionProxy[Any], plan: Plan, epoch: Epoch, paths: Sequence[str]
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


def _prefix(plan: Plan, unit: Unit) -> str:
    whose = f"{unit.application}\0{plan.table.qualified}"
    return f"penstock_{hashlib.sha256(whose.encode()).hexdigest()[:12]}_"


def _new_name(plan: Plan, unit: Unit) -> str:
    return f"{_prefix(plan, unit)}{unit.version}_{uuid4().hex[:8]}"


def _creation(plan: Plan, name: str, *, ordered: bool, unlogged: bool) -> str:
    like = (
        "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES INCLUDING GENERATED "
        "INCLUDING IDENTITY INCLUDING STORAGE"
    )
    order = f", {ORDER} bigint GENERATED ALWAYS AS IDENTITY" if ordered else ""
    kind = "UNLOGGED TABLE" if unlogged else "TABLE"
    return f"CREATE {kind} {at(plan, name)} (LIKE {plan.table.qualified} {like}{order})"


async def _make(con: PoolConnectionProxy[Any], plan: Plan, creation: str) -> None:
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
            f"needs tables beside {plan.table.qualified}, which cannot be made ({error}); {rights}",
        ) from error


async def _collect(con: PoolConnectionProxy[Any], plan: Plan, unit: Unit, *, older: bool) -> None:
    """Drop what is left of this version, and of `older` ones if asked, unless somebody holds it."""
    prefix = _prefix(plan, unit)
    found = await con.fetch(
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid "
        "= c.relnamespace"
        " WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname ~ ('^' || $2 || "
        "'[0-9]+_[0-9a-f]{8}$')",
        plan.table.schema,
        prefix,
    )
    for row in found:
        name: str = row[0]
        version = int(name.removeprefix(prefix).partition("_")[0])
        if version == unit.version or (older and version < unit.version):
            await _drop(con, at(plan, name))


async def _drop(con: PoolConnectionProxy[Any], path: str) -> None:
    try:
        await con.execute(f"BEGIN; {_PATIENCE}; DROP TABLE IF EXISTS {path}; COMMIT")
    except Exception as error:
        await con.execute("ROLLBACK")
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
