"""The table of an open sink, compared with the server's columns before and after INSERTs.

ClickHouse silently changes values that do not fit a column, so they are checked for the columns'
types, which may be altered at any time:

1. The columns are compared before a write if the last comparison is more than `FRESH_SECONDS` old,
   and after each INSERT. Rows that do not fit a column that was altered in between have failed,
   although they are stored.
2. The table is read again before a row fails for its values.
3. The sink keeps the columns that the table had when it was opened, so a new column gets its
   DEFAULT. The current columns are written only if more items of a batch fit them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.clock import LOOP_CLOCK
from .._core.errors import ConfigError, PermanentError, RefusedError, SinkError, UnknownOutcomeError
from .opened import OpenClickHouseTable
from .table import check_server, read_columns, read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core.batch import Batch
    from .._core.values.encoding import Records
    from .._core.values.rows import RowFunction
    from .table import Ask, TableFacts, TableName, ToldColumns

FRESH_SECONDS = 1.0


class WatchedTable:
    """A table as last read, and its columns as last compared."""

    def __init__(
        self,
        ask: Ask,
        name: TableName,
        columns: Sequence[str] | None,
        row: RowFunction | None,
        *,
        deduplicate: bool,
        is_arrow: bool,
    ) -> None:
        self._ask = ask
        self._name = name
        self._columns = columns
        self._row = row
        self._deduplicate = deduplicate
        self._is_arrow = is_arrow
        self._table: OpenClickHouseTable | None = None
        self._told: ToldColumns = []
        self._is_stale = False
        self._looked_at = 0.0

    @property
    def current(self) -> OpenClickHouseTable:
        """The table as last read."""
        assert self._table is not None, "the table has been read"
        return self._table

    async def read(self) -> None:
        """Read the table. Raises `ConfigError` if it does not fit the sink's arguments,
        `RefusedError` if it does not exist, and the errors of the request.
        """
        self._accept(self._made(await read_table(self._ask, self._name), None))

    async def encoded(self, batch: Batch[Any]) -> tuple[OpenClickHouseTable, Records]:
        """The records of a batch, and their table.

        Raises `PermanentError` for columns in which no value could fit, `RefusedError` if items do
        not fit the table since it was altered, and the errors of the requests.
        """
        if LOOP_CLOCK.now() - self._looked_at > FRESH_SECONDS:
            await self._compare()
        table = self.current
        if not self._is_stale:
            records = _records(table, batch)
            if not isinstance(records, PermanentError) and not records.errors:
                return table, records
        return self._encoded_by(await read_table(self._ask, self._name), batch)

    def misfits(self, table: OpenClickHouseTable, batch: Batch[Any]) -> dict[int, BaseException]:
        """An error for each item of a sent batch that does not fit the columns as last compared."""
        return table.misfits(self._told, batch)

    async def look(self) -> None:
        """Compare the columns after an INSERT. Raises `UnknownOutcomeError` if they cannot be read."""
        try:
            await self._compare()
        except SinkError as error:
            text = "the INSERT succeeded, but the table's columns cannot be compared after it"
            raise UnknownOutcomeError(f"{text}: {error}") from error

    def suspect(self) -> None:
        """Read the table before the next write."""
        self._is_stale = True

    async def _compare(self) -> None:
        told = await read_columns(self._ask, self._name)
        self._looked_at = LOOP_CLOCK.now()
        if told != self._told:
            self._told, self._is_stale = told, True

    def _made(self, facts: TableFacts, kept: tuple[str, ...] | None) -> OpenClickHouseTable:
        check_server(facts, deduplicate=self._deduplicate, is_arrow=self._is_arrow)
        return OpenClickHouseTable(
            facts, self._name, self._columns, self._row, is_arrow=self._is_arrow, kept=kept
        )

    def _accept(self, table: OpenClickHouseTable) -> None:
        self._table, self._told = table, table.facts.told
        self._is_stale, self._looked_at = False, LOOP_CLOCK.now()

    def _encoded_by(
        self, facts: TableFacts, batch: Batch[Any]
    ) -> tuple[OpenClickHouseTable, Records]:
        """The records by the columns that more items fit: the sink's, or the current ones."""
        kept, error = self.current.names, None
        best: tuple[OpenClickHouseTable, Records | PermanentError] | None = None
        for names in (kept, None) if self._columns is None and kept != facts.usual else (kept,):
            try:
                table = self._made(facts, names)
            except ConfigError as reason:
                error = reason
                continue
            records = _records(table, batch)
            if best is None or _failures(records, batch) < _failures(best[1], batch):
                best = table, records
        if error is not None and (best is None or _failures(best[1], batch)):
            text = f"the table or the server was altered: {error}"
            raise RefusedError(text, repair="undo the change, or reopen the sink") from error
        assert best is not None, "a table was made, or its error raised"
        table, records = best
        self._accept(table)
        if isinstance(records, PermanentError):
            raise records
        return table, records


def _records(table: OpenClickHouseTable, batch: Batch[Any]) -> Records | PermanentError:
    try:
        return table.records(batch)
    except PermanentError as error:  # of all items
        return error


def _failures(records: Records | PermanentError, batch: Batch[Any]) -> int:
    return len(batch) if isinstance(records, PermanentError) else len(records.errors)
