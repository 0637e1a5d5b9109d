"""An open table: converts batches to records, and provides the URL of their INSERTs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from .._core.arrow import ArrowBatch
from .._core.batch import RowBatch
from .._core.classify import caused
from .._core.errors import ConfigError, PermanentError
from .._core.text import text_of
from .._core.values.encoding import ndjson
from .._core.values.rows import RowMaker
from ..http.body import json_array
from .json_body import JsonRows
from .request import insert_url, known_only
from .table import types_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core.batch import Batch
    from .._core.values.encoding import Records
    from .._core.values.rows import RowFunction
    from ..http.body import JoinBodies
    from .arrow_body import ArrowRows
    from .table import TableFacts, TableName, ToldColumns
    from .types import ColumnType


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
        self._columns = self._chosen(columns or kept)
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

    def _chosen(self, columns: Sequence[str] | None) -> dict[str, ColumnType]:
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
        from .arrow_body import ArrowRows

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
