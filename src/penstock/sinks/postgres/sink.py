"""Rows into a PostgreSQL table: `COPY` for large batches, staging for conflicts, bad rows refused
one by one.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ..._clients.postgres.errors import classify_postgres
from ..._core import checks
from ..._core.arrow import ArrowBatch
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import (
    ClosedError,
    ConfigError,
    ErrorClass,
    TransactionLost,
    UnknownOutcomeError,
)
from ..._core.opening import Openable
from ..._core.sink import Capabilities
from ..._core.told import for_log
from . import config
from .connections import Connections, opening_error
from .encoding import can_copy
from .ledger import Ledger
from .refusals import Judge
from .rows import RowMaker
from .stage import Stages
from .strategy import Ways
from .table import read_table
from .transaction import PostgresTransaction
from .write import Write, answer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from asyncpg.pool import Pool, PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.result import WriteResult
    from ..._core.transaction import Transaction, Unit
    from .config import PoolFactory
    from .rows import Row, RowFunction
    from .sql import Plan


logger = logging.getLogger("penstock.postgres")


class PostgresSink(Stages, Openable):
    """Writes items as rows of one table. Each write is atomic, but for the rows that are refused
    and left out.

    An item is a tuple or list with a value per column, a mapping by column name, a dataclass or
    other object with such attributes, or whatever `row` makes a row of. An item that cannot become
    a row, or that the server refuses, fails alone with `PermanentError`, whose cause is the error;
    its neighbours are delivered. However many rows are bad, a write takes at most 3 tries, one
    staging and one sifting.

    Args:
        dsn: `postgresql://user:password@host:port/database`; default: asyncpg's environment
            variables. Never shown.
        table: the table's name, taken literally.
        columns: the columns that a row's values go to.
        schema: the table's schema; default: found by the server's search path.
        on_conflict: `"error"`: a row whose unique key is there is refused. `"ignore"`: it is left
            as it is, and the item is delivered. `"update"`: it is replaced; of several rows of one
            key in a batch the last one counts.
        conflict_columns: a unique key that conflicts are looked for in; default: any for
            `"ignore"`, and for `"update"` the primary key, or the first unique key within
            `columns`.
        update_columns: what `"update"` replaces; default: every other column.
        version_column: with `"update"`, replace only rows with a lower version, so that an old row
            never overwrites a newer one.
        row: a function from an item to its row.
        returning: columns of the stored row, such as a number that the table gives, for the item's
            receipt: its `detail` is then a dictionary of them. An item whose row was skipped or
            replaced by a later one of its batch has none. With `"ignore"` conflicts are then looked
            for in one key, as with `"update"`; an item whose key holds NULL may have none.
        statement: `"auto"`: what is fastest for the number of rows, by the thresholds. `"insert"`:
            one `INSERT` per row, in a pipeline. `"unnest"`: one `INSERT` from an array per column;
            not for columns that are arrays themselves. `"copy"`: `COPY`, where conflicts are
            handled into a staging table. All of them are one transaction. What repairs bad rows or
            unknown outcomes is not bound by it.
        copy_threshold: from how many rows on they are sent together instead of one by one in a
            pipeline; default 50. That is `COPY`, which a codec in text format keeps asyncpg from
            using, or, where conflicts are handled or rows returned, one `INSERT` from arrays.
        staging_threshold: from how many rows on the latter is replaced by `COPY` into a staging
            table; default 10,000.
        pool: a function, async or not, that makes an asyncpg pool, instead of `dsn`; the sink
            closes what it made.
        pool_size: how many connections, and so how many writes at once; default 10. With `pool`,
            what the function's pool has at least. A batcher with more workers is refused.
        connect_options: any option of `asyncpg.create_pool`; `ssl` may be a function that makes the
            `SSLContext`.
        close_timeout: seconds for closing and for resetting a connection after a cancelled write;
            then it is terminated. Default 5.
        statement_timeout: seconds that one statement may run on the server; default: the server's.
            Exceeding it is transient.
        ledger: the table in which `transaction` keeps what was committed; made where it is missing,
            altered where it is that of an earlier release, taken literally.
        ledger_schema: its schema; default: that of `schema`. Without either it is found by the
            search path, and made beside the table.
        ledger_versions: how many versions of an application it keeps for each table; default 100.
            An older one is refused.
        stages: how the tables are made that Spark's `delivery="atomic"` writes into first.
            `"logged"` ones (the default) outlive a crash of the server; `"unlogged"` ones spare its
            log, and a crash empties them: the write then begins again, by itself.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Constructing does
    not suspend and connects to nothing. Opening suspends; it connects and reads the table. It
    raises `ConfigError` for a table, column, user, password, database or certificate that is not
    right, naming what is there, and `UnavailableError` where no server answers.

    The table is read again before a row is blamed for an error, so an open sink writes to a table
    that was altered meanwhile, or made anew.
    """

    _run_time = ("_connections", "_plan", "_pruned")

    def __init__(
        self,
        dsn: str | None = None,
        *,
        table: str = "events",
        columns: Sequence[str] = ("user_id", "action", "ts"),
        schema: str | None = None,
        on_conflict: Literal["error", "ignore", "update"] = "error",
        conflict_columns: Sequence[str] | None = None,
        update_columns: Sequence[str] | None = None,
        version_column: str | None = None,
        row: RowFunction | None = None,
        returning: Sequence[str] | None = None,
        statement: Literal["auto", "insert", "unnest", "copy"] = "auto",
        copy_threshold: int | None = None,
        staging_threshold: int | None = None,
        pool: PoolFactory | None = None,
        pool_size: int | None = None,
        connect_options: Mapping[str, Any] | None = None,
        close_timeout: float | timedelta = 5.0,
        statement_timeout: float | timedelta | None = None,
        ledger: str = "penstock_ledger",
        ledger_schema: str | None = None,
        ledger_versions: int = 100,
        stages: Literal["logged", "unlogged"] = "logged",
    ) -> None:
        self._target = config.Target(
            table=table,
            schema=schema,
            columns=config.names("columns", columns),
            mode=on_conflict,
            conflict=None
            if conflict_columns is None
            else config.names("conflict_columns", conflict_columns),
            update=None
            if update_columns is None
            else config.names("update_columns", update_columns),
            version=version_column,
            returning=() if returning is None else config.names("returning", returning),
            ways=Ways.of(statement, copy_threshold, staging_threshold),
        )
        access = config.access(dsn, pool, pool_size, connect_options, statement_timeout)
        self._connect_options = (
            access.options
        )  # by this name, and first, for the error that it cannot be pickled
        self._access = access
        self._row = config.row_function(row)
        self._maker = RowMaker(self._target.columns, self._row)
        self._close_timeout = checks.seconds("close_timeout", close_timeout)
        self._ledger = Ledger(
            table=ledger,
            schema=schema if ledger_schema is None else ledger_schema,
            versions=ledger_versions,
        )
        self._stages = checks.choice("stages", stages, ("logged", "unlogged"))
        config.need_asyncpg()
        self._connections: Connections | None = None
        self._plan: Plan | None = None
        self._pruned: dict[str, int] | None = None
        self._known_as: str | None = None
        """The target's qualified name, where this writes into a stage of it."""

    @property
    def capabilities(self) -> Capabilities:
        """As many writes at once as connections; idempotent unless a conflict is an error.

        `key_prefix_safe`: in a batch with keys, a row that is refused keeps the later rows of its
        key from being written.
        """
        idempotent = self._target.mode != "error"
        return Capabilities(
            key_prefix_safe=True,
            idempotent=idempotent,
            transactional=True,
            columnar=True,
            max_concurrency=self._access.size,
        )

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by its SQLSTATE, as `classify_postgres` tells it."""
        return classify_postgres(error)

    def refused_columns(self, schema: Any) -> Mapping[str, str]:
        """The columns of a `pyarrow.Schema` that could not be written, and why; while the sink is
        open, by the table's own types.

        With `row` every column is taken, since the function decides.
        """
        if self._row is not None:
            return {}
        from .types import refused_columns  # whoever has a schema has pyarrow

        return refused_columns(
            schema, self._target.columns, None if self._plan is None else self._plan.table
        )

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch` as a row, atomically; suspends for one round trip or, with
        conflicts or bad rows, for a few.

        Returns the items that were refused (`PermanentError` each) and the ones that an earlier,
        unknown try had stored (`duplicate`). Raises `ClosedError` while the sink is not open;
        `RefusedError` where the server refuses every row until an operator repairs it (a login, a
        right, a table, a column, a full disk), with nothing stored; `UnavailableError` where no
        connection is to be had or the table is locked; `TransientError` where the connection was
        lost before the rows could be kept; `UnknownOutcomeError` where it was lost after that, or
        where an earlier try was unknown and the table has no unique key to find its rows by; and
        the server's own error for everything else that no item is to blame for. Cancellation
        cancels the statement. Where the server had the last row already, it may have stored the
        batch. The connection is reset in the background, within `close_timeout`, or terminated.
        """
        connections, plan = self._opened()
        indices, rows, errors = self._rows_of(batch, plan)
        async with connections.lent() as con:
            write = Write(
                con,
                plan,
                self._judge,
                indices=indices,
                rows=rows,
                errors=errors,
                maybe=batch.maybe_applied,
                keys=batch.keys,
            )
            await write.run(self._target.ways)
        if write.plan is not plan and self._plan is plan:
            self._plan = write.plan
        return answer(batch, write)

    @property
    def _judge(self) -> Judge:
        return Judge(self._target, self._access.place)

    def _opened(self) -> tuple[Connections, Plan]:
        if self._connections is None or self._plan is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._connections, self._plan

    def _rows_of(
        self, batch: Batch[Any], plan: Plan
    ) -> tuple[Sequence[int], Sequence[Row], dict[int, Exception]]:
        if isinstance(batch, ArrowBatch) and self._row is None and plan.copies and plan.reads_text:
            from .columns import column_rows  # whoever has made the batch has pyarrow

            found = column_rows(
                batch.record_batch, [plan.table.column(name) for name in plan.columns]
            )
            if found is not None:
                return range(len(found)), found, {}
        return self._maker.rows(batch)

    # -- transactions ------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Transaction[Any]]:
        """A transaction on a connection of its own; enter it by `penstock.transaction(sink, unit)`,
        which says what it does and raises.

        With a unit the ledger has its row, under the name of the table; entering suspends while
        another attempt of it is under way, and the commit waits for the disk whatever the session
        says. `UnitRefused` also where the unit was committed to an earlier table of this name, or
        to this table under another name. Bad rows are refused as by `write`, each write in a
        savepoint. Deferred constraints are checked at once, and isolation is `READ COMMITTED`. If
        the answer to the COMMIT is lost, the ledger is asked on another connection, within
        `close_timeout`. A refusal ends it: leaving raises `RefusedError`.
        """
        connections, plan = self._opened()
        async with connections.lent() as con:
            ways, ledger = self._target.ways, self._ledger
            target = self._known_as or plan.table.qualified
            made = PostgresTransaction(
                con,
                plan,
                self._judge,
                ways,
                self._rows_of,
                ledger=ledger,
                unit=unit,
                target=target,
                confirm=self._confirm_letters,
            )
            try:
                await made.begin()
                yield made
                await made.commit()
            except TransactionLost as lost:
                if (refused := made.refusal) is not None:
                    raise refused from lost
                raise
            finally:
                made.end()
            if unit is not None and made.in_doubt is None and not made.is_replay:
                await self._prune(con, unit, target)
        if made.in_doubt is not None:
            await self._resolve(made, made.in_doubt)

    async def _resolve(self, made: PostgresTransaction, error: Exception) -> None:
        """Nobody has answered the COMMIT: ask the ledger."""
        if made.unit is None:
            raise UnknownOutcomeError(
                "no answer to the COMMIT, and without a unit nobody can tell whether it was "
                f"applied ({error})"
            ) from error
        connections, _ = self._opened()
        try:
            async with (
                LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._close_timeout),
                connections.lent() as con,
            ):
                is_there = await self._ledger.has(con, made.unit, made.target)
        except Exception as second:
            message = (
                f"no answer to the COMMIT of {made.unit.name}, and none from the ledger "
                f"either ({second}); another attempt will know"
            )
            raise UnknownOutcomeError(message) from error
        if not is_there:
            raise TransactionLost(
                f"no answer to the COMMIT of {made.unit.name}; the ledger says that nothing of "
                "it was applied"
            ) from error
        made.commits()

    async def _confirm_letters(self, unit: Unit, target: str, count: int) -> None:
        connections, _ = self._opened()
        async with connections.lent() as con:
            await self._ledger.wrote_letters(con, unit, target, count)

    async def _prune(self, con: PoolConnectionProxy[Any], unit: Unit, target: str) -> None:
        """Once per version, and only for tidiness."""
        pruned = self._pruned
        if pruned is None or pruned.get(unit.application, -1) >= unit.version:
            return
        pruned[unit.application] = unit.version
        try:
            await self._ledger.prune(con, unit.application, target)
        except Exception as error:
            logger.warning(
                "old versions of %r are still in the ledger %s: %s",
                unit.application,
                self._ledger.qualified,
                for_log(error),
            )

    # -- opening and closing -----------------------------------------------------------------------

    async def _open(self, stack: AsyncExitStack) -> None:
        self._connections = await Connections.to(self._access, self._close_timeout)
        stack.push_async_callback(self._connections.close)
        self._plan = await self._read_plan(self._connections.pool)
        self._pruned = {}

    async def _read_plan(self, pool: Pool[Any]) -> Plan:
        target = self._target
        reads_text = self._access.pool is None and not {"init", "setup"} & set(self._access.options)
        try:
            async with pool.acquire() as con:
                table = await read_table(con, target.table, target.schema, target.columns)
                plan = target.plan(table, reads_text=reads_text)
                plan = plan if reads_text else replace(plan, copies=await can_copy(con, plan))
                target.ways.check(plan)
                return plan
        except ConfigError:
            raise
        except Exception as error:
            raise opening_error(error, self._access.place)  # noqa: B904  # it has its cause

    def _terminate(self) -> None:
        if self._connections is not None:
            self._connections.pool.terminate()

    def __repr__(self) -> str:
        table = (
            self._target.table
            if self._target.schema is None
            else f"{self._target.schema}.{self._target.table}"
        )
        return (
            f"PostgresSink({self._access.place}, table={table!r}, "
            f"on_conflict={self._target.mode!r})"
        )
