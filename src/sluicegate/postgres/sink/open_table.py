"""An open table: its settings, its pool, its current plan, and its writes and transactions."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import ConfigError
from ..._core.logs import for_log
from ..._core.positions import PositionUnit
from ..._core.sink import Capabilities, WriteResult
from ..._core.transaction import Unit
from ..client.refusals import for_opening
from .diagnosis import role_and_missing
from .encoding import by_codecs, json_by_codecs
from .growth import is_there
from .positions import PositionOwner, PositionTransaction
from .progress import ProgressTable
from .scope import ALONE, SWITCHING, Block, StatementLost
from .table import read_table
from .transaction import PostgresTransaction, attempt
from .write import TableWriter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import Self

    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.values.rows import RowFunction
    from ..client.access import Access
    from ..client.connections import Connections
    from .growth import GrowthSettings
    from .ledger import UnitLedger
    from .plan import TablePlan
    from .positions import PositionTable
    from .scope import Scope
    from .strategy import Target

logger = logging.getLogger("sluicegate.postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of an open sink. Raises `ConfigError`."""

    target: Target
    access: Access
    row: RowFunction | None
    growth: GrowthSettings
    ledger: UnitLedger
    positions: PositionTable
    stages: str

    def __post_init__(self) -> None:
        if self.row is not None and not callable(self.row):
            rule = "must be a function of an item that returns a sequence of values"
            raise bad("row", self.row, rule)
        if self.row is not None and self.growth.on_new_column is not None:
            rule = "has no effect with row=, whose rows have values for columns= only"
            raise bad("on_new_column", self.growth.on_new_column, rule)
        if self.row is not None and self.target.changes is not None:
            raise bad(
                "changes", self.target.changes, "has no effect with row=, which makes rows only"
            )
        if self.target.changes is not None and self.growth.creates and not self.growth.types:
            rule = "must have the types of a table that is created for changes: {name: type}"
            raise bad("columns", self.target.columns, rule)
        checks.choice("stages", self.stages, ("logged", "unlogged"))

    @property
    def capabilities(self) -> Capabilities:
        """As many concurrent writes as connections; idempotent unless a conflict is an error."""
        return Capabilities(
            key_prefix_safe=self.target.changes is None,
            idempotent=self.target.mode != "error",
            transactional=True,
            columnar=True,
            max_concurrency=self.access.size,
        )

    def __repr__(self) -> str:
        return (
            f"PostgresSink({self.access.place}, table={self.target.shown!r}, "
            f"on_conflict={self.target.mode!r})"
        )


class OpenTable:
    """Writes to one table, and to its stages, on pooled connections."""

    def __init__(self, settings: Settings, connections: Connections, plan: TablePlan) -> None:
        self.settings = settings
        self.connections = connections
        self.plan = plan
        self._writer = TableWriter(settings.target, settings.access, settings.row, settings.growth)
        self._growing = asyncio.Lock()
        self._alone = SWITCHING if connections.may_switch else ALONE
        """The scope of a write as long as statements are prepared."""
        self._pruned: dict[str, int] = {}
        """The last version of each application after which the ledger was pruned."""
        table = plan.table
        self.progress = ProgressTable(settings.ledger.schema or table.schema, table.qualified)
        self.positions = PositionOwner(
            settings.positions, connections, table.qualified, table.schema
        )

    @classmethod
    async def open(cls, settings: Settings, connections: Connections) -> Self:
        """Read the table. Raises `ConfigError` if the table or a column does not fit, or the role
        lacks a privilege that every write needs.
        """
        target, access, statements = settings.target, settings.access, connections.statements
        reads_text = access.keeps_codecs
        growth = TableWriter(target, access, settings.row, settings.growth).growth
        try:
            async with connections.opening() as con:
                grown = None if growth is None else await growth.open(con, statements)
                async with statements.block(con):
                    if grown is None:
                        table = await read_table(con, target.table, target.schema, target.columns)
                        grown = await by_codecs(con, target.plan(table, reads_text=reads_text))
                    plan = grown
                    if is_there(plan):
                        await _check_rights(con, plan, access.place)
                plan = plan if reads_text else await json_by_codecs(con, plan)
        except ConfigError:
            raise
        except Exception as error:
            raise for_opening(error, access.place)  # noqa: B904  # the cause is set
        return cls(settings, connections, plan)

    def at(self, name: str) -> OpenTable:
        """Another table with the same columns: a stage of this one, to which none are added."""
        plan = replace(self.plan, table=replace(self.plan.table, name=name))
        settings, growth = self.settings, self.settings.growth
        if growth.adds:
            settings = replace(settings, growth=replace(growth, on_new_column="fail"))
        return OpenTable(settings, self.connections, plan)

    async def store(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch` as a row, atomically."""
        connections, losses = self.connections, 0
        while True:
            plan = self.plan if self._writer.growth is None else await self._grow(batch)
            given = self._writer.rows_of(batch, plan)
            if not is_there(plan):  # no item has a value that tells the type of a column
                return WriteResult(len(batch), given[2])
            con = await connections.borrow()
            try:
                try:
                    result, written_by = await self._writer.run(
                        con, plan, batch, given, maybe=batch.maybe_applied, scope=self._scope()
                    )
                except StatementLost:
                    losses += 1
                    await connections.lost_statement(con, again=losses > 1)
                    result, written_by = None, None
            except BaseException as error:
                await connections.give_back(con, error)
                raise
            if not connections.keep(con):
                await connections.give_back(con, None)
            if written_by is None:
                continue
            if written_by is not plan and self.plan is plan:
                self.plan = written_by
            return result

    async def _grow(self, batch: Batch[Any]) -> TablePlan:
        """The plan with a column for each value of a batch; creates missing ones."""
        growth = self._writer.growth
        assert growth is not None
        if growth.lacking(batch, self.plan):
            async with self._growing:
                # others may have added columns, or dropped some
                while lacking := growth.lacking(batch, self.plan):
                    async with self.connections.lent() as con:
                        with self.connections.bounded(con):
                            self.plan = await growth.fit(con, self.plan, lacking, ALONE)
        return self.plan

    def check_there(self, *, whole: bool = False) -> None:
        """Raise `ConfigError` unless the table exists, with the `whole` of its columns if requested.

        A transaction and its ledger, positions and stages name the table before the first row.
        """
        missing = [name for name in self.settings.target.columns if name not in self.plan.columns]
        if missing and (whole or not is_there(self.plan)):
            rule = (
                f"{self.plan.table.qualified} is not there with these columns, and their types are "
                "not known before the first write; give them: columns={name: type}"
            )
            raise bad("columns", missing, rule)

    def _scope(self) -> Scope:
        statements = self.connections.statements
        return self._alone if statements.are_prepared else Block(statements.begin)

    @asynccontextmanager
    async def transaction(
        self, unit: Unit | PositionUnit | None
    ) -> AsyncGenerator[PostgresTransaction]:
        """A transaction on its own connection; see `PostgresSink.transaction`."""
        self.check_there()
        async with attempt(
            self.connections,
            lambda con: self._transaction(con, unit),
            close_timeout=self.settings.access.close_timeout,
            settled=self._prune,
        ) as made:
            yield made

    def _transaction(
        self, con: PoolConnectionProxy[Any], unit: Unit | PositionUnit | None
    ) -> PostgresTransaction:
        kind = PositionTransaction if isinstance(unit, PositionUnit) else PostgresTransaction
        made = kind(
            con,
            self.plan,
            self._writer,
            statements=self.connections.statements,
            ledger=self.settings.ledger,
            unit=unit,
            target=self.plan.table.qualified,
            confirm=self._confirm_letters,
        )
        if isinstance(made, PositionTransaction) and isinstance(unit, PositionUnit):
            made.move_by(self.positions.move_of(unit))
        return made

    async def _confirm_letters(self, unit: Unit, target: str, count: int) -> None:
        async with self.connections.asking() as con:
            await self.settings.ledger.wrote_letters(con, unit, target, count)

    async def _prune(self, made: PostgresTransaction) -> None:
        """Prune the ledger, once per version; a failure has no further effect."""
        ledger, con, unit = self.settings.ledger, made.connection, made.unit
        if not isinstance(unit, Unit) or made.is_replay:
            return
        if self._pruned.get(unit.application, -1) >= unit.version:
            return
        self._pruned[unit.application] = unit.version
        try:
            async with self.connections.statements.block(con):
                await ledger.prune(con, unit.application, made.target)
        except Exception as error:
            logger.warning(
                "old versions of %r could not be removed from the ledger %s: %s",
                unit.application,
                ledger.qualified,
                for_log(error),
            )


async def _check_rights(con: PoolConnectionProxy[Any], plan: TablePlan, place: str) -> None:
    """Raise `ConfigError` if the role lacks a privilege that every write needs."""
    found = await con.fetchrow(role_and_missing(plan, again=False, sifts=False))
    assert found is not None  # always one row
    if missing := found["missing"]:
        role = found["role"]
        rule = (
            f"role {role} lacks a privilege; grant {', '.join(missing)} at {place} to role {role}"
        )
        raise bad("table", plan.table.qualified, rule)
