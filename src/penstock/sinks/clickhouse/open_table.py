"""A table that is open: batches become records, and records one URL for all of their requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ..._clients.encoding import ndjson
from ..._clients.row_maker import RowMaker
from ..._core.arrow import ArrowBatch
from ..._core.batch import RowBatch
from ..._core.errors import ConfigError, PermanentError
from ..http.body import json_array
from .json_body import JsonRows
from .request import insert_url, known_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._clients.encoding import Records
    from ..._clients.row_maker import RowFunction
    from ..._core.batch import Batch
    from ..http.body import Join
    from .arrow_columns import TargetColumn
    from .table import TableFacts, TableName
    from .types import ColumnType


class OpenTable:
    """One table as it is, for the columns of a sink. Raises `ConfigError` for columns that it does
    not have, and types that Arrow does not have.
    """

    def __init__(
        self,
        facts: TableFacts,
        name: TableName,
        columns: Sequence[str] | None,
        row: RowFunction | None,
        *,
        is_arrow: bool,
    ) -> None:
        self.facts = facts
        self._name = name
        self._is_given = columns is not None
        self._row = row
        self._is_arrow = is_arrow
        self.columns = self._chosen(columns)
        self._rows = RowMaker(tuple(self.columns), row)
        self._known = frozenset(self.columns)
        self._json = JsonRows(self.columns)
        self._targets: dict[str, TargetColumn] = self._arrow_targets() if is_arrow else {}

    @property
    def join(self) -> Join:
        """What makes bodies of records."""
        if self._is_arrow:
            from .arrow_body import ipc_stream

            return ipc_stream
        return json_array if self.facts.takes_arrays else ndjson

    def records(self, batch: Batch[Any]) -> Records:
        """A record for each item that fits, and an error for each other one."""
        if self._is_arrow and isinstance(batch, ArrowBatch):
            return self._of_columns(batch)
        indices, rows, found = self._rows.rows(batch)
        errors: dict[int, BaseException] = dict(found)
        if self._row is None and not self._is_given:
            indices, rows = self._without_strangers(batch, indices, rows, errors)
        if not self._is_arrow:
            return self._json.records(indices, rows, errors)
        from .arrow_body import records_of_rows

        return records_of_rows([*self._targets.values()], indices, rows, errors)

    def insert_url(
        self, base: str, batch: Batch[Any], own: Mapping[str, str], further: Mapping[str, str]
    ) -> str:
        """The URL of the INSERTs of this batch, with the sink's own settings that the server knows."""
        settings = {**known_only(own, self.facts.settings), **further}
        format_name = "ArrowStream" if self._is_arrow else "JSONEachRow"
        columns = self._columns_of(batch)
        return insert_url(base, self._name.quoted, columns, format_name, settings)

    def _columns_of(self, batch: Batch[Any]) -> tuple[str, ...]:
        """The columns that an INSERT of this batch names."""
        if self._is_given or not self._is_arrow or not isinstance(batch, ArrowBatch):
            return tuple(self.columns)
        return tuple(batch.record_batch.schema.names)

    def refused_columns(self, schema: Any) -> dict[str, str]:
        """See `ClickHouseSink.refused_columns`."""
        found: dict[str, str] = {}
        if self._is_given or not self._is_arrow:
            missing = [each for each in self.columns if each not in schema.names]
            found |= dict.fromkeys(missing, "is missing; leave it out of columns=, or write it")
        if not self._is_given:
            strange = [each for each in schema.names if each not in self.columns]
            found |= dict.fromkeys(strange, f"is no column of {self._name.shown}; drop it")
        if self._is_arrow:
            from .arrow_columns import UnfitType

            for name, target in self._targets.items():
                if name in schema.names:
                    try:
                        target.check_type(schema.field(name).type)
                    except UnfitType as error:
                        found[name] = f"{error}; cast it"
        return found

    def _chosen(self, columns: Sequence[str] | None) -> dict[str, ColumnType]:
        known = self.facts.columns
        if columns is None:
            return {each: known[each] for each in self.facts.usual}
        for each in columns:
            if each not in known:
                has = ", ".join(known)
                raise ConfigError(
                    f"columns={each!r}: is no column of {self._name.shown} that takes values; it has "
                    f"{has}"
                )
        return {each: known[each] for each in columns}

    def _arrow_targets(self) -> dict[str, TargetColumn]:
        from .arrow_columns import TargetColumn, UnfitType

        found: dict[str, TargetColumn] = {}
        for name, kind in self.columns.items():
            try:
                found[name] = TargetColumn(name, kind)
            except UnfitType as error:
                rule = 'give format="json", or columns= without it'
                raise ConfigError(f"columns={name!r}: {error}; {rule}") from error
        return found

    def _of_columns(self, batch: ArrowBatch) -> Records:
        from .arrow_body import records_of_columns

        record_batch = batch.record_batch
        names = record_batch.schema.names
        missing = [each for each in self._columns_of(batch) if each not in names]
        strange = [each for each in self._columns_of(batch) if each not in self._targets]
        if missing:
            raise PermanentError(f"the batch has no column {missing[0]!r}; it has {names}")
        if strange:
            raise PermanentError(
                f"{self._name.shown} has no column {strange[0]!r} that takes values; drop it, or give "
                "columns="
            )
        targets = [self._targets[each] for each in self._columns_of(batch)]
        return records_of_columns(targets, record_batch, {})

    def _without_strangers(
        self,
        batch: Batch[Any],
        indices: Sequence[int],
        rows: Sequence[Any],
        errors: dict[int, BaseException],
    ) -> tuple[Sequence[int], Sequence[Any]]:
        """Refuse mappings with fields that the table does not have: they would be lost silently."""
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        strange: dict[int, BaseException] = {}
        for index in indices:
            item = items[index]
            if isinstance(item, Mapping):
                fields = cast("Mapping[Any, Any]", item).keys()
                if not fields <= self._known:
                    strange[index] = self._strange(fields - self._known)
        if not strange:
            return indices, rows
        errors |= strange
        kept = [place for place, index in enumerate(indices) if index not in strange]
        return [indices[place] for place in kept], [rows[place] for place in kept]

    def _strange(self, fields: Any) -> PermanentError:
        named = ", ".join(sorted(map(repr, fields)))
        return PermanentError(
            f"the item has {named}, which {self._name.shown} has not; give columns= to leave it out"
        )
