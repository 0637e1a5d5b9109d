"""An open table: converts batches to rows and writes them."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from .._core.checks import bad
from .._core.clock import LOOP_CLOCK
from .._core.errors import ConfigError, RefusedError
from .._core.order.left_out import stopped_behind
from .._core.sink import WriteResult
from .._core.values.encoding import item_error
from .batch import SqlBatch
from .errors import for_connecting, missing_privilege
from .plan import read_plan
from .rows import SqlRow
from .values import needed
from .writer import BlamedRow, SqlWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from .._core.batch import Batch
    from .._core.values.rows import RowMaker, RowTarget
    from .dialects import SqlDialect
    from .engine import SqlEngine
    from .plan import SqlPlan
    from .values import Processor

R = TypeVar("R")
FRESH_SECONDS = 1.0


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

    async def check_rights(self) -> None:
        """Raise `ConfigError` if the user lacks a privilege of the table.

        The server explains the statement of a write, which needs the privileges of the statement
        and writes nothing. No other error counts.
        """
        if not self._dialect.explains:
            return
        try:
            await self._look(self.plan.explain)
        except Exception as error:
            if (told := missing_privilege(error)) is None:
                return
            rights = ", ".join(self._dialect.rights(self._target))
            rule = f"the user lacks a privilege ({told}); grant {rights} on table {self.plan.table}"
            raise bad("table", self._target.table, rule) from error

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
            try:
                await self.engine.run(SqlWriter(self.plan, rows).write_carefully)
            except BlamedRow:  # refused by the COMMIT
                errors = dict(found)
                rows = self._batch(batch, indices, given, errors)
                await self.engine.run(SqlWriter(self.plan, rows).write_singly)
        except Exception:
            self._read_at = float("-inf")  # such as of a statement above the server's new limit
            raise
        answer = rows.answer
        errors |= answer.errors
        if not errors and not answer.outcomes and not answer.details:
            return None
        return WriteResult(len(batch), errors, answer.outcomes, answer.details)

    async def _write(self, rows: SqlBatch) -> None:
        """Write all rows. Raises `BlamedRow`, with nothing stored, if a row may be at fault."""
        writer = SqlWriter(self.plan, rows)
        if not rows.commits_alone:
            await self.engine.run(writer.write)
        else:
            await self.engine.execute(*rows.alone(), writer.write_alone)

    async def _compare(self) -> None:
        """Read the table again if its columns were altered; look for that once per
        `FRESH_SECONDS`.
        """
        if LOOP_CLOCK.now() - self._read_at <= FRESH_SECONDS:
            return
        name, schema = self._target.table, self._target.schema
        told = await self._look(lambda con: self._dialect.told(con, name, schema))
        if told == self.plan.told:
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
                indices, given = _processed(indices, given, processors, errors)
        own = repeat(None) if keys is None else map(keys.__getitem__, indices)
        bound = [*map(SqlRow, indices, given, own, map(maybe.__contains__, indices))]
        if keys is not None and errors:
            stopped = stopped_behind(keys, errors, ())
            errors |= stopped
            bound = [row for row in bound if row.index not in stopped]
        return SqlBatch(self.plan, bound)


def _processed(
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
