"""Items as rows of Parquet files in an object store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from ..._clients.row_maker import RowMaker
from ..._core import checks
from ..._core.arrow import ArrowBatch
from ..._core.checks import bad
from ..._core.errors import MissingExtra, PermanentError, RefusedError
from ..._core.keywords import takes
from ..._core.sink import Capabilities
from .base import Bodies, ObjectBase, ObjectBody, ObjectOptions, object_settings
from .columns import made_columns, of_column, of_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._core.batch import Batch
    from ..._core.result import WriteResult

COMPRESSIONS = ("snappy", "gzip", "zstd", "brotli", "lz4", "none")
_RULE = "must be a schema of pyarrow, or a mapping from names to types, such as {'id': 'int64'}"


class ParquetSink(ObjectBase):
    """Writes each batch as a Parquet file to S3, Google Cloud Storage, Azure or a folder.

    As `ObjectSink` does it: a file appears whole or not at all, a retry replaces its own file, and a
    batch is a file, or one for each partition. Batches of Arrow columns are written without making
    rows. No value is changed to fit its column: a row whose value would be cut or rounded (but for
    floats) fails alone.

    Args:
        url: as for `ObjectSink`.
        schema: the columns of the files, as a `pyarrow.Schema`, or a mapping from their names to
            types: `pyarrow.DataType`s, or their names, such as `"int64"`, `"string"`,
            `"timestamp[us]"` or `"date32"`. `None` is for batches of Arrow columns: each opening
            keeps the schema of its first batch.
        row: a function from an item to its row. Default: a tuple in the order of the columns, a
            mapping by column name, or an object with such attributes.
        compression: `"zstd"` (default), `"snappy"`, `"gzip"`, `"brotli"`, `"lz4"` or `"none"`.
        row_group_rows: rows in a row group; default 1,048,576.
        writer_options: further options of `pyarrow.parquet.write_table`, such as `use_dictionary`.
        partition_by: as for `ObjectSink`. Columns of this name that `schema` does not have are in the
            folders' names only, as Hive, Spark and DuckDB expect it.
        prefix, manifest, concurrency, timeout, close_timeout, config, client_options: as for
            `ObjectSink`.

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
        _pyarrow()
        self._schema: Any = None if schema is None else schema_of(schema)
        row = checks.optional_function("row", row, "must be a function of an item")
        if self._schema is None and row is not None:
            raise bad("row", row, "needs schema=, the columns of its values")
        self._rows = None if self._schema is None else RowMaker(tuple(self._schema.names), row)
        ours = {
            "compression": checks.choice("compression", compression, COMPRESSIONS),
            "row_group_size": checks.optional_count("row_group_rows", row_group_rows),
        }
        self._options = _with_options(ours, writer_options or {})
        self._first: Any = None

    @property
    def capabilities(self) -> Capabilities:
        """It writes columns without making rows."""
        return Capabilities(columnar=True)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Store `batch`, encoded in a thread, as one file or one for each partition; suspends until
        the store has confirmed all of them, or refused.

        Details, errors and cancellation are those of `ObjectSink.write`; a row that does not fit the
        schema fails alone with `PermanentError`. Without a schema, a batch of rows raises
        `RefusedError`.
        """
        if isinstance(batch, ArrowBatch) and self._schema is None and self._first is None:
            self._first = self._without_folders(batch.record_batch).schema
        return await self._write(batch)

    def _without_folders(self, columns: Any) -> Any:
        """The columns that are not in the folders' names."""
        names = self._settings.partitions.names
        return columns.drop_columns([name for name in names if name in columns.schema.names])

    def _bodies(self, batch: Batch[Any]) -> Bodies:
        if isinstance(batch, ArrowBatch):
            return self._of_columns(batch)
        if self._rows is None:
            raise RefusedError(
                f"{self!r} has no schema, and the items are no columns of Arrow",
                repair="pass schema=, the columns of the files",
            )
        items: Sequence[Any] = tuple(batch)
        indices, rows, unmade = self._rows.rows(batch)
        errors: dict[int, BaseException] = dict(unmade)
        columns, unfit = made_columns(self._schema, _turned(rows, len(self._schema)), of_values)
        if unfit:
            errors |= {indices[position]: error for position, error in unfit.items()}
            kept = [position for position in range(len(rows)) if position not in unfit]
            indices, rows = [indices[i] for i in kept], [rows[i] for i in kept]
            columns, _ = made_columns(self._schema, _turned(rows, len(self._schema)), of_values)
        table = _table(columns, self._schema)
        return self._divided(batch, items, table, indices, errors)

    def _of_columns(self, batch: ArrowBatch) -> Bodies:
        schema, given = self._schema or self._first, batch.record_batch
        self._check_names(schema, given)
        chosen = [given.column(name) for name in schema.names]
        columns, errors = made_columns(schema, chosen, of_column)
        indices: Sequence[int] = range(len(batch))
        if errors:
            indices = [index for index in indices if index not in errors]
            if not indices:
                return Bodies([], errors)
            positions = _pyarrow().array(indices, "int64")
            chosen = [column.take(positions) for column in chosen]
            columns, _ = made_columns(schema, chosen, of_column)
        partitions = self._settings.partitions
        items = partitions.items_of(batch)
        return self._divided(batch, items, _table(columns, schema), indices, errors)

    def _check_names(self, schema: Any, given: Any) -> None:
        found = given.schema.names
        missing = [name for name in schema.names if name not in found]
        if missing:
            raise PermanentError(f"the batch has no column {', '.join(map(repr, missing))}")
        more = {*self._without_folders(given).schema.names} - {*schema.names}
        if more and self._schema is None:
            raise PermanentError(
                f"the batch has other columns than the first one: {', '.join(map(repr, sorted(more)))}; "
                "pass schema= to name the columns of the files"
            )

    def _divided(
        self,
        batch: Batch[Any],
        items: Sequence[Any],
        table: Any,
        indices: Sequence[int],
        errors: dict[int, BaseException],
    ) -> Bodies:
        """The files of a table by partition; its rows are the items at `indices`."""
        groups, unplaced = self._settings.partitions.groups(items, indices)
        objects: list[ObjectBody] = []
        place = {index: position for position, index in enumerate(indices)}
        for folder, group in groups.items():
            part = table if len(group) == len(indices) else table.take([place[i] for i in group])
            key = batch.pick(group).write_key
            objects.append(ObjectBody(folder, self._encoded(part), group, key))
        return Bodies(objects, errors | unplaced)

    def _encoded(self, table: Any) -> Any:
        import pyarrow as pa
        from pyarrow import parquet

        into = pa.BufferOutputStream()
        parquet.write_table(table, into, **self._options)
        return memoryview(into.getvalue()).cast("B")  # obstore takes unsigned bytes


def schema_of(given: object) -> Any:
    """Check a schema. Raises `ConfigError`."""
    pa = _pyarrow()
    if isinstance(given, pa.Schema):
        made = given
    elif isinstance(given, Mapping):
        named = cast("Mapping[str, Any]", given)
        made = pa.schema([(name, _type_of(name, value)) for name, value in named.items()])
    else:
        raise bad("schema", given, _RULE)
    if not made.names or len({*made.names}) != len(made.names):
        raise bad("schema", made.names, "must have at least one column, each once")
    return made


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra('pip install "penstock[parquet]"') from None
    return pa


def _type_of(name: str, value: Any) -> Any:
    pa = _pyarrow()
    if isinstance(value, pa.DataType):
        return value
    try:
        return pa.type_for_alias(value)
    except (ValueError, TypeError):
        raise bad(
            f"schema[{name!r}]", value, "must be a type of pyarrow, or the name of one"
        ) from None


def _with_options(ours: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the writer. Raises `ConfigError` for one that it does not take."""
    from pyarrow import parquet

    pa = _pyarrow()
    for name in ours.keys() & given.keys():
        raise bad(f"writer_options[{name!r}]", given[name], "has an argument of its own")
    made = {**given, **ours}
    try:
        parquet.write_table(pa.table({"x": pa.array([], "int64")}), pa.BufferOutputStream(), **made)
    except Exception as error:
        raise bad("writer_options", dict(given), f"pyarrow refuses them ({error})") from error
    return made


def _turned(rows: Sequence[Sequence[Any]], width: int) -> Sequence[Sequence[Any]]:
    """Columns of rows."""
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _table(columns: Sequence[Any], schema: Any) -> Any:
    import pyarrow as pa

    return pa.Table.from_arrays(columns, schema=schema)
