"""The table of an open sink, compared with the server's columns before and after INSERTs.

ClickHouse silently changes values that do not fit a column, so they are checked for the columns'
types, which may be altered at any time:

1. The columns are compared before a write if the last comparison is more than `FRESH_SECONDS` old,
   and after each INSERT. Rows that do not fit a column that was altered in between have failed,
   although they are stored.
2. The table is read again before a row fails for its values.
3. The sink keeps the columns that the table had when it was opened, so a new column gets its
   DEFAULT. The current columns are written only if more items of a batch fit them.

Rows as `JSONEachRow`: objects with the names of the table's columns.

A body is one array, so the server refuses it if it is truncated. A body of lines that is cut
between two lines would look complete, and the rows before the cut would be stored. Servers before
22 accept only lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from .._core.arrow import ArrowBatch
from .._core.batch import RowBatch
from .._core.classify import caused
from .._core.clock import LOOP_CLOCK
from .._core.errors import ConfigError, PermanentError, RefusedError, SinkError, UnknownOutcomeError
from .._core.text import text_of
from .._core.values.encoding import all_to_json, encoded, ndjson, to_json
from .._core.values.rows import RowMaker
from ..http.write import json_array
from .server import check_server, insert_url, known_only, read_columns, read_table, types_of
from .values import UnfitValue, rule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core.batch import Batch
    from .._core.values.encoding import Records
    from .._core.values.rows import RowFunction
    from ..http.write import JoinBodies
    from .arrow import ArrowRows
    from .server import Ask, TableFacts, TableName, ToldColumns
    from .values import ColumnType, ValueRule


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
        self._accept(self._build(await read_table(self._ask, self._name), None))

    async def encode(self, batch: Batch[Any]) -> tuple[OpenClickHouseTable, Records]:
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
        return self._encode_by(await read_table(self._ask, self._name), batch)

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

    def _build(self, facts: TableFacts, kept: tuple[str, ...] | None) -> OpenClickHouseTable:
        check_server(facts, deduplicate=self._deduplicate, is_arrow=self._is_arrow)
        return OpenClickHouseTable(
            facts, self._name, self._columns, self._row, is_arrow=self._is_arrow, kept=kept
        )

    def _accept(self, table: OpenClickHouseTable) -> None:
        self._table, self._told = table, table.facts.told
        self._is_stale, self._looked_at = False, LOOP_CLOCK.now()

    def _encode_by(
        self, facts: TableFacts, batch: Batch[Any]
    ) -> tuple[OpenClickHouseTable, Records]:
        """The records by the columns that more items fit: the sink's, or the current ones."""
        kept, error = self.current.names, None
        best: tuple[OpenClickHouseTable, Records | PermanentError] | None = None
        for names in (kept, None) if self._columns is None and kept != facts.usual else (kept,):
            try:
                table = self._build(facts, names)
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


# -- batches to records ----------------------------------------------------------------------------


class OpenClickHouseTable:
    """The current table, restricted to the columns of a sink. Raises `ConfigError` for columns that
    it does not have, and for types that Arrow does not have.
    """

    def __init__(
        self,
        facts: TableFacts,
        name: TableName,
        columns: Sequence[str] | None,
        row: RowFunction | None,
        *,
        is_arrow: bool,
        kept: tuple[str, ...] | None = None,
    ) -> None:
        """`kept`: without `columns`, those of the open sink; default: all that are stored."""
        self.facts = facts
        self._row = row
        self._name = name
        self._is_given = columns is not None
        self._has_row = row is not None
        self._columns = self._choose(columns or kept)
        self._rows = RowMaker(tuple(self._columns), row)
        self._json = JsonRows(self._columns)
        self._arrow = self._arrow_rows() if is_arrow else None

    @property
    def join(self) -> JoinBodies:
        """The function that joins records to a body."""
        if self._arrow is not None:
            return self._arrow.join
        return json_array if self.facts.takes_arrays else ndjson

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are written."""
        return tuple(self._columns)

    def records(self, batch: Batch[Any]) -> Records:
        """A record for each item that fits, and an error for every other item. Raises
        `PermanentError` for columns in which no value could fit.
        """
        if self._arrow is not None and isinstance(batch, ArrowBatch):
            return self._arrow.of_columns(batch.record_batch, self._named(batch))
        indices, rows, found = self._rows.rows(batch)
        errors: dict[int, BaseException] = dict(found)
        if not self._has_row and not self._is_given:
            indices, rows = self._without_strangers(batch, indices, rows, errors)
        encoder = self._json if self._arrow is None else self._arrow
        return encoder.of_rows(indices, rows, errors)

    def misfits(self, told: ToldColumns, batch: Batch[Any]) -> dict[int, BaseException]:
        """An error for each item of a sent batch that does not fit these columns, which the table
        has had since the INSERT or before it; the server may have changed the values.
        """
        if told == self.facts.told:
            return {}
        now = types_of(told)
        types = {name: now.get(name, kind) for name, kind in self._columns.items()}
        facts = replace(self.facts, columns=types, usual=tuple(types), told=told)
        given = self.names if self._is_given else None
        is_arrow = self._arrow is not None
        try:
            table = OpenClickHouseTable(facts, self._name, given, self._row, is_arrow=is_arrow)
            found = table.records(batch).errors
        except (ConfigError, PermanentError) as error:
            found = dict.fromkeys(range(len(batch)), error)
        return {index: self._changed(error) for index, error in found.items()}

    def _changed(self, error: BaseException) -> BaseException:
        """The error of a row whose column was altered before its INSERT."""
        text = (
            f"{self._name.shown} was altered while the row was written, and the row does not fit the "
            f"altered table, which may hold it with changed values: {text_of(error)}"
        )
        summary = f"{self._name.shown} was altered while the row was written"
        return caused(PermanentError(text), error, summary=summary)

    def insert_url(
        self, base: str, batch: Batch[Any], own: Mapping[str, str], further: Mapping[str, str]
    ) -> str:
        """The URL of the INSERTs of this batch, with those of the sink's own settings that the
        server knows.
        """
        settings = {**known_only(own, self.facts.settings), **further}
        format_name = "JSONEachRow" if self._arrow is None else "ArrowStream"
        return insert_url(base, self._name.quoted, self._named(batch), format_name, settings)

    def refused_columns(self, schema: Any) -> dict[str, str]:
        """See `ClickHouseSink.refused_columns`."""
        found: dict[str, str] = {}
        if self._is_given or self._arrow is None:
            missing = [each for each in self._columns if each not in schema.names]
            found |= dict.fromkeys(missing, "is missing; leave it out of columns=, or write it")
        if not self._is_given:
            strange = [each for each in schema.names if each not in self._columns]
            found |= dict.fromkeys(strange, f"is not a column of {self._name.shown}; drop it")
        if self._arrow is not None:
            found |= self._arrow.refused(schema)
        return found

    def _named(self, batch: Batch[Any]) -> tuple[str, ...]:
        """The columns that are named in an INSERT of this batch."""
        if self._is_given or self._arrow is None or not isinstance(batch, ArrowBatch):
            return tuple(self._columns)
        return tuple(batch.record_batch.schema.names)

    def _choose(self, columns: Sequence[str] | None) -> dict[str, ColumnType]:
        known = self.facts.columns
        if columns is None:
            return {each: known[each] for each in self.facts.usual}
        for each in columns:
            if each not in known:
                raise ConfigError(
                    f"columns={each!r}: is not a column of {self._name.shown} that accepts values; "
                    "it has " + ", ".join(known)
                )
        return {each: known[each] for each in columns}

    def _arrow_rows(self) -> ArrowRows:
        from .arrow import ArrowRows

        return ArrowRows(self._columns, self._name.shown)

    def _without_strangers(
        self,
        batch: Batch[Any],
        indices: Sequence[int],
        rows: Sequence[Any],
        errors: dict[int, BaseException],
    ) -> tuple[Sequence[int], Sequence[Any]]:
        """Refuse mappings with fields that the table does not have, which would be lost silently."""
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        if rows is items:  # all items are sequences
            return indices, rows
        count = len(self._columns)  # every item has all of them
        strange: dict[int, BaseException] = {}
        for index in indices:
            item = items[index]
            if type(item) is not dict and not isinstance(item, Mapping):
                continue
            fields = cast("Mapping[Any, Any]", item).keys()
            if len(fields) != count:
                strange[index] = self._strange(fields - self._columns.keys())
        if not strange:
            return indices, rows
        errors |= strange
        kept = [place for place, index in enumerate(indices) if index not in strange]
        return [indices[place] for place in kept], [rows[place] for place in kept]

    def _strange(self, fields: Any) -> PermanentError:
        named = ", ".join(sorted(map(repr, fields)))
        return PermanentError(
            f"the item has {named}, which {self._name.shown} does not have; give columns= to leave "
            "it out"
        )


# -- JSONEachRow -----------------------------------------------------------------------------------


class JsonRows:
    """Encodes rows with values for these columns."""

    def __init__(self, columns: Mapping[str, ColumnType]) -> None:
        self._names = tuple(columns)
        self._rules = tuple(map(rule_of, columns.values()))

    def of_rows(
        self,
        indices: Sequence[int],
        rows: Sequence[Sequence[Any]],
        errors: dict[int, BaseException],
    ) -> Records:
        """A record for each row; a row with an invalid value gets an error."""
        made = encoded(self._all, self._one, rows)
        errors.update({indices[place]: error for place, error in made.errors.items()})
        found = [indices[place] for place in made.indices]
        return type(made)(found, made.records, errors)

    def _all(self, rows: Sequence[Sequence[Any]]) -> list[bytes]:
        columns = map(_check_column, self._rules, zip(*rows, strict=True))
        names = self._names
        return all_to_json(
            [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        )

    def _one(self, row: Sequence[Any]) -> bytes:
        values = zip(self._names, self._rules, row, strict=True)
        return to_json({name: _named(name, rule, value) for name, rule, value in values})


def _check_column(rule: ValueRule, values: Sequence[Any]) -> Sequence[Any]:
    if rule.numbers is None and rule.plain.issuperset(map(type, values)):
        return values
    return list(map(rule.convert, values))


def _named(name: str, rule: ValueRule, value: Any) -> Any:
    try:
        return rule.convert(value)
    except UnfitValue as error:
        raise UnfitValue(f"column {name!r}: {error}") from error
