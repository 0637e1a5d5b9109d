"""The sink for tables of SQL databases, through SQLAlchemy."""

from __future__ import annotations

import logging
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .._core import checks
from .._core.classify import classified
from .._core.clock import LOOP_CLOCK
from .._core.errors import (
    ClosedError,
    ConfigError,
    ErrorClass,
    RefusedError,
    SluicegateError,
    UnavailableError,
)
from .._core.keywords import known_arguments
from .._core.opening import Openable
from .._core.order.left_out import stopped_behind
from .._core.sink import Capabilities, WriteResult
from .._core.text import text_of
from .._core.values.encoding import item_error
from .._core.values.rows import RowMaker, RowTarget, column_names, optional_names
from .batch import SqlBatch
from .dialects import dialect_of
from .engine import EngineGiven
from .errors import classify_sql, for_connecting
from .plan import read_plan
from .rows import SqlRow
from .values import needed
from .writer import BlamedRow, SqlWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from sqlalchemy import URL, Connection, Engine

    from .._core.batch import Batch
    from .dialects import SqlDialect
    from .engine import SqlEngine
    from .plan import SqlPlan
    from .values import Processor


logger = logging.getLogger("sluicegate.sql")
ANSWER_WITHIN = 20.0
"""Seconds for connecting and reading the table when the sink is opened."""
R = TypeVar("R")
FRESH_SECONDS = 1.0
"""Seconds in which the columns are not compared again."""


@known_arguments()
class SqlSink(Openable):
    """Writes items as rows of one table of MySQL, MariaDB or SQLite, with SQLAlchemy 2.

    A write is one transaction. A row that the database refuses, or that it would silently change,
    fails alone with `PermanentError`; the other rows are stored. If a constraint that is deferred to
    the COMMIT refuses it, the whole write fails, and `Isolate` finds the row. Items become rows as in
    `PostgresSink`.

    Args:
        url: an SQLAlchemy URL, such as `"mysql+pymysql://user:password@host/database"`, with a
            driver that is not async: it runs in threads. The password is never shown. Or an
            `Engine`, or a function that returns one; an engine that you pass stays open.
        table: the table's name, taken literally.
        columns: the columns in which a row's values are stored.
        schema: the table's schema; default: the connection's.
        on_conflict: `"error"`: a row whose unique key exists is refused. `"ignore"`: the existing
            row stays, and the item is delivered. `"update"`: the existing row is replaced; of
            several rows with the same key in a batch, the last one takes effect.
        conflict_columns: the unique key that determines conflicts; default: for `"update"` the
            primary key, or the first unique key within `columns`. MySQL and MariaDB always use all
            unique keys.
        update_columns: the columns that `"update"` replaces, besides the version; default: every
            other column.
        version_column: with `"update"`, replace only rows with a lower version, or with none. A row
            without a version is refused.
        row: a function from an item to its row.
        pool_size: number of connections, and therefore of concurrent writes; default 10, or 1 for
            SQLite, which allows one writer at a time.
        engine_options: any options of `sqlalchemy.create_engine`, such as `connect_args`.
        close_timeout: seconds for closing, and for ending a cancelled write; default 5. Then the
            connections are broken.

    Raises `ConfigError` for a bad argument and `MissingExtra` without SQLAlchemy. Constructing does
    not suspend and connects to nothing. Opening suspends; it connects and reads the table. It
    raises `ConfigError` for a refused login, a table that does not exist or that the rows do not
    fit, and a driver that is not installed; and
    `UnavailableError` if no server responds.
    """

    _run_time = ("_table",)

    def __init__(
        self,
        url: str | URL | Engine | Callable[[], Engine],
        *,
        table: str,
        columns: Sequence[str],
        schema: str | None = None,
        on_conflict: Literal["error", "ignore", "update"] = "error",
        conflict_columns: Sequence[str] | None = None,
        update_columns: Sequence[str] | None = None,
        version_column: str | None = None,
        row: Callable[[Any], Sequence[Any]] | None = None,
        pool_size: int | None = None,
        engine_options: Mapping[str, Any] | None = None,
        close_timeout: float | timedelta = 5.0,
    ) -> None:
        self._target = RowTarget(
            table=table,
            schema=schema,
            columns=column_names("columns", columns),
            mode=on_conflict,
            conflict=optional_names("conflict_columns", conflict_columns),
            update=optional_names("update_columns", update_columns),
            version=version_column,
        )
        rule = "must be a function of an item"
        self._row: Any = checks.optional_function("row", row, rule)
        self._engine = EngineGiven.of(
            url,
            size=checks.optional_count("pool_size", pool_size),
            options=engine_options,
            close_timeout=checks.seconds("close_timeout", close_timeout, usual=checks.LONG_TIMEOUT),
        )
        self._table: OpenSqlTable | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the sink.

        - `max_concurrency`: the number of connections.
        - `idempotent`, unless a conflict is an error.
        - `repeatable`, once the sink is open, if the written columns include a unique key of the
          table: it identifies rows that an earlier attempt has stored.
        - `key_prefix_safe`: in a batch with keys, no row is written after a refused row of the same
          key.
        """
        has_key = self._table is not None and self._table.plan.key is not None
        return Capabilities(
            idempotent=self._target.mode != "error",
            repeatable="item" if has_key else None,
            key_prefix_safe=True,
            max_concurrency=self._engine.size,
        )

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by the database's code."""
        return classify_sql(error)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch` as a row, in one transaction.

        Suspends. Returns the refused items (`PermanentError`, `TooLargeError`, or `KeyStopped`
        after a refused item of their key) and the items that an earlier attempt with an unknown
        outcome had stored (`duplicate`). If conflicts are errors, that is so only if the stored row
        has the same values; an item of a key with other values fails with `StoredRowDiffers`, or
        with `KeyRepeated` behind an item of the batch with its key. Raises `ClosedError` while the
        sink is not open; `RefusedError` if the table was altered so that no row fits;
        `TransientError` if the connection was lost before anything could be stored;
        `UnknownOutcomeError` if it was lost later; `UnverifiableError` if an earlier attempt is
        unknown and its rows cannot be found; and the client's own error for everything else, which
        `classify` recognizes. A cancelled write may have been stored.
        """
        if self._table is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        if not len(batch):
            return None
        return await self._table.store(batch)

    async def _open(self, stack: AsyncExitStack) -> None:
        engine = self._engine.make()
        stack.push_async_callback(engine.close)
        dialect = dialect_of(engine.sync.dialect.name)
        table = OpenSqlTable(
            engine, self._target, dialect, RowMaker(self._target.columns, self._row)
        )
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + ANSWER_WITHIN):
                await table.read()
        except ConfigError:
            raise
        except TimeoutError as error:
            told = f"no database answers at {self._engine.place} within {ANSWER_WITHIN:g} s"
            raise UnavailableError(told) from error
        except Exception as error:
            raise self._opening_error(error) from error
        if table.plan.doubt is not None:
            logger.warning("%r: %s", self, table.plan.doubt)
        self._table = table

    def _opening_error(self, error: Exception) -> SluicegateError:
        place, told = self._engine.place, text_of(error)
        if classified(error, classify_sql) is ErrorClass.REFUSED:
            return ConfigError(f"url={place}: the database refuses ({told})")
        return UnavailableError(f"no database answers at {place} ({told})")

    def __repr__(self) -> str:
        return f"SqlSink({self._engine.place}, table={self._target.table!r})"


# -- the open table --------------------------------------------------------------------------------


class OpenSqlTable:
    """A table, and the engine that connects to it."""

    def __init__(
        self, engine: SqlEngine, target: RowTarget, dialect: SqlDialect, maker: RowMaker
    ) -> None:
        self.engine = engine
        self._target = target
        self._dialect = dialect
        self._maker = maker
        self._plan: SqlPlan | None = None
        self._read_at = 0.0

    @property
    def plan(self) -> SqlPlan:
        """The table's properties as last read."""
        assert self._plan is not None, "the table has been read"
        return self._plan

    async def read(self) -> None:
        """Read the current table. Raises `ConfigError` if the rows do not fit it."""
        self._plan = await self._look(lambda con: read_plan(con, self._target, self._dialect))
        self._read_at = LOOP_CLOCK.now()

    async def store(self, batch: Batch[Any]) -> WriteResult | None:
        """Write a batch; see `SqlSink.write`."""
        await self._compare()
        indices, given, found = self._maker.rows(batch)
        errors: dict[int, BaseException] = dict(found)
        rows = self._batch(batch, indices, given, errors)
        if len(errors) > len(found) or rows.answer.errors:
            await self._read_again()
            errors = dict(found)
            rows = self._batch(batch, indices, given, errors)
        try:
            await self._write(rows)
        except BlamedRow:
            await self._read_again()
            errors = dict(found)
            rows = self._batch(batch, indices, given, errors)
            await self.engine.run(SqlWriter(self.plan, rows).write_carefully)
        except Exception:
            self._read_at = float("-inf")  # such as of a statement above the server's new limit
            raise
        answer = rows.answer
        errors |= answer.errors
        if not errors and not answer.outcomes:
            return None
        return WriteResult(len(batch), errors, answer.outcomes)

    async def _write(self, rows: SqlBatch) -> None:
        """Write all rows. Raises `BlamedRow`, with nothing stored, if a row may be at fault."""
        writer = SqlWriter(self.plan, rows)
        await self.engine.run(writer.write_alone if rows.commits_alone else writer.write)

    async def _compare(self) -> None:
        """Read the table again if its columns were altered; look for that once per
        `FRESH_SECONDS`.
        """
        if LOOP_CLOCK.now() - self._read_at <= FRESH_SECONDS:
            return
        name, schema = self._target.table, self._target.schema
        told = await self._look(lambda con: self._dialect.describe(con, name, schema))
        if told == self.plan.description:
            self._read_at = LOOP_CLOCK.now()
        else:
            await self._read_again()

    async def _look(self, function: Callable[[Connection], R]) -> R:
        """Read the table's definition. No item is the cause of an error."""
        try:
            return await self.engine.run(function)
        except Exception as error:
            raise for_connecting(error)  # noqa: B904  # it has its cause

    async def _read_again(self) -> None:
        """Read the table before a row is blamed, since the table may have changed.

        Raises `RefusedError` if the rows no longer fit it.
        """
        try:
            await self.read()
        except ConfigError as error:
            text = f"the table was altered: {error}"
            raise RefusedError(text, repair="undo the change, or reopen the sink") from error

    def _batch(
        self,
        batch: Batch[Any],
        indices: Sequence[int],
        given: Sequence[Any],
        errors: dict[int, BaseException],
    ) -> SqlBatch:
        """The rows that can be bound; the others are added to `errors`."""
        keys, maybe = batch.keys, batch.maybe_applied
        for processors in (needed(self.plan.rules, given), self.plan.processors):
            if processors:
                indices, given = _convert_rows(indices, given, processors, errors)
        own = repeat(None) if keys is None else map(keys.__getitem__, indices)
        bound = [*map(SqlRow, indices, given, own, map(maybe.__contains__, indices))]
        if keys is not None and errors:
            stopped = stopped_behind(keys, errors, ())
            errors |= stopped
            bound = [row for row in bound if row.index not in stopped]
        return SqlBatch(self.plan, bound)


def _convert_rows(
    indices: Sequence[int],
    rows: Sequence[Sequence[Any]],
    processors: Mapping[int, Processor],
    errors: dict[int, BaseException],
) -> tuple[list[int], list[Sequence[Any]]]:
    """The rows in the form that the driver needs, with their indices; the others are added to
    `errors`.
    """
    kept: list[int] = []
    made: list[Sequence[Any]] = []
    for index, row in zip(indices, rows, strict=True):
        values = [*row]
        try:
            for place, process in processors.items():
                if values[place] is not None:
                    values[place] = process(values[place])
        except Exception as error:  # the item's own error
            errors[index] = item_error("cannot become a row", error)
        else:
            kept.append(index)
            made.append(values)
    return kept, made
