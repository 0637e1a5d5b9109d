"""Items as rows of Parquet files in an object store."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from .._core import checks
from .._core.arrow import ArrowBatch
from .._core.batch import RowBatch
from .._core.checks import bad
from .._core.errors import PermanentError, RefusedError
from .._core.extras import need
from .._core.keywords import takes
from .._core.public import publish
from .._core.sink import Capabilities
from .._core.values.rows import RowMaker
from .sink import BatchObjects, ObjectBase, ObjectBody, ObjectOptions, object_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .._core.batch import Batch
    from .._core.sink import WriteResult
    from .tables import MadeTable, ParquetEncoder

COMPRESSIONS = ("snappy", "gzip", "zstd", "brotli", "lz4", "none")


class ParquetSink(ObjectBase):
    """Writes each batch as a Parquet file to S3, Google Cloud Storage, Azure or a folder.

    As with `ObjectSink`, a file appears completely or not at all, a retry replaces its own file,
    and a batch is one file, or one file per partition. Batches of Arrow columns are written without
    conversion to rows. No value is changed to fit its column: a row whose value would be truncated
    or rounded (except floats) fails alone.

    Args:
        url: as for `ObjectSink`.
        schema: the columns of the files, as a `pyarrow.Schema`, or a mapping from their names to
            types: `pyarrow.DataType`s, or their names, such as `"int64"`, `"string"`,
            `"timestamp[us]"` or `"date32"`. `None` is for batches of Arrow columns: the sink uses
            the schema of the first batch after opening.
        row: a function from an item to its row. Default: a tuple in the order of the columns, a
            mapping by column name, or an object with such attributes.
        compression: `"zstd"` (default), `"snappy"`, `"gzip"`, `"brotli"`, `"lz4"` or `"none"`.
        row_group_rows: rows in a row group; default 1,048,576.
        writer_options: other options of `pyarrow.parquet.write_table`, such as `use_dictionary`.
        partition_by: as for `ObjectSink`. Partition columns that are not in `schema` are only in
            the folders' names, as Hive, Spark and DuckDB expect.

    `prefix`, `concurrency`, `timeout`, `close_timeout`, `config` and `client_options`
    are as for `ObjectSink`.

    Raises `ConfigError` for a bad argument and `MissingExtra` without obstore or pyarrow.
    Constructing does not suspend. Opening connects to nothing.
    """

    _run_time = ("_uploads", "_first")
    _suffix = "parquet"
    _content_type = "application/vnd.apache.parquet"

    @takes(ObjectOptions, object_settings)
    def __init__(
        self,
        url: str | Callable[[], Any],
        *,
        schema: Any,
        row: Callable[[Any], Sequence[Any]] | None = None,
        compression: Literal["snappy", "gzip", "zstd", "brotli", "lz4", "none"] = "zstd",
        row_group_rows: int | None = None,
        writer_options: Mapping[str, Any] | None = None,
        **options: Unpack[ObjectOptions],
    ) -> None:
        super().__init__(object_settings(url, **options))
        checks.choice("compression", compression, COMPRESSIONS)
        checks.optional_count("row_group_rows", row_group_rows)
        tables = _tables()
        self._schema: Any = None if schema is None else tables.schema_of(schema)
        self._encoder: ParquetEncoder = tables.ParquetEncoder.of(
            compression, row_group_rows, writer_options or {}, self._schema
        )
        row = checks.optional_function("row", row, "must be a function of an item")
        if self._schema is None and row is not None:
            raise bad("row", row, "requires schema=, the columns of its values")
        self._rows = None if self._schema is None else RowMaker(tuple(self._schema.names), row)
        self._takes_names = row is None
        self._first: Any = None

    @property
    def capabilities(self) -> Capabilities:
        """Columnar: the sink writes columns without conversion to rows. A write is repeatable,
        since it replaces its own objects.
        """
        return Capabilities(columnar=True, repeatable="write")

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Store `batch`, encoded in a thread, as one file or one file per partition; suspends until
        the store has confirmed or refused all of them.

        Details, errors and cancellation are those of `ObjectSink.write`; a row that does not fit the
        schema fails alone with `PermanentError`. Without a schema, a batch of rows raises
        `RefusedError`.
        """
        if isinstance(batch, ArrowBatch) and self._schema is None:
            self._first = self._complete_schema(self._in_files(batch).schema)
        return await self._write(batch)

    def _complete_schema(self, schema: Any) -> Any:
        """The schema of the first batch. A type that was not known then, since a column had no
        value, is that of the first batch with values.
        """
        made = schema if self._first is None else _tables().complete(self._first, schema)
        if made is not self._first and (trouble := self._encoder.trouble_with(made)):
            repair = "convert the column, or pass a schema= without it"
            raise RefusedError(f"{self!r}: {trouble}", repair=repair)
        return made

    def _bodies(self, batch: Batch[Any]) -> BatchObjects:
        if isinstance(batch, ArrowBatch):
            made = _tables().of_columns(self._columns(batch), self._schema or self._first)
            items = self._settings.partitions.items_of(batch)
            return self._divide(batch, items, made, range(len(batch)), {})
        if self._rows is None:
            raise RefusedError(
                f"{self!r} has no schema, and the items are not Arrow columns",
                repair="pass schema=, the columns of the files",
            )
        items = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        if self._takes_names and {*map(type, items)} == {dict}:
            with suppress(KeyError):
                made = _tables().of_rows(items, self._schema, are_named=True)
                return self._divide(batch, items, made, range(len(items)), {})
        indices, rows, errors = self._rows.rows(batch)
        made = _tables().of_rows(rows, self._schema)
        return self._divide(batch, items, made, indices, dict(errors))

    def _in_files(self, batch: ArrowBatch) -> Any:
        """The columns that are not only in the folders' names."""
        names, columns = self._settings.partitions.names, batch.record_batch
        return columns.drop_columns([name for name in names if name in columns.schema.names])

    def _columns(self, batch: ArrowBatch) -> Any:
        """The columns for the files. Raises `PermanentError` if a column is missing or unexpected."""
        wanted = (self._schema or self._first).names
        missing = [name for name in wanted if name not in batch.record_batch.schema.names]
        if missing:
            raise PermanentError(f"the batch has no column {', '.join(map(repr, missing))}")
        more = {*self._in_files(batch).schema.names} - {*wanted}
        if more and self._schema is None:
            raise PermanentError(
                "the batch has columns that the first one did not have: "
                f"{', '.join(map(repr, sorted(more)))}; pass schema= to name the columns of the "
                "files"
            )
        return batch.record_batch.select(wanted)

    def _divide(
        self,
        batch: Batch[Any],
        items: Sequence[Any],
        made: MadeTable,
        indices: Sequence[int],
        errors: dict[int, BaseException],
    ) -> BatchObjects:
        """The files of a table by partition; its rows were made from the items at `indices`."""
        errors |= {indices[position]: error for position, error in made.errors.items()}
        if made.errors:
            indices = [indices[position] for position in made.positions]
        groups, unplaced = self._settings.partitions.groups(items, indices)
        row_of = {} if len(groups) == 1 and not unplaced else {i: n for n, i in enumerate(indices)}

        def encode(group: Sequence[int]) -> Any:
            table = made.table
            if row_of:
                table = table.take([row_of[index] for index in group])
            return self._encoder.file(table)

        return BatchObjects(
            [
                ObjectBody(folder, partial(encode, group), group, batch.pick(group).write_key)
                for folder, group in groups.items()
            ],
            errors | unplaced,
        )


def _tables() -> Any:
    """The module that needs pyarrow. Raises `MissingExtra`."""
    need("pyarrow", "parquet", "ParquetSink")
    from . import tables

    return tables


publish("sluicegate.objects", ParquetSink)
