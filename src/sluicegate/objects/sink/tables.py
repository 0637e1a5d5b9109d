"""Arrow tables made from rows or columns, and their Parquet files."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyarrow import parquet

from ..._core.checks import bad
from ..._core.classify import caused
from ..._core.errors import PermanentError
from .columns import made_columns, of_column, of_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_RULE = "must be a pyarrow schema, or a mapping from names to types, such as {'id': 'int64'}"


def schema_of(given: object) -> Any:
    """Validate a schema. Raises `ConfigError`."""
    if isinstance(given, pa.Schema):
        made: Any = given
    elif isinstance(given, Mapping):
        named = cast("Mapping[str, Any]", given)
        made = pa.schema([(name, _type_of(name, value)) for name, value in named.items()])
    else:
        raise bad("schema", given, _RULE)
    if not made.names or len({*made.names}) != len(made.names):
        raise bad("schema", made.names, "must have at least one column, and no column twice")
    return made


def _type_of(name: str, value: Any) -> Any:
    if isinstance(value, pa.DataType):
        return value
    try:
        return pa.type_for_alias(value)
    except (ValueError, TypeError):
        raise bad(
            f"schema[{name!r}]", value, "must be a pyarrow type, or the name of one"
        ) from None


def completed(known: Any, schema: Any) -> Any:
    """`known`, with the types of `schema` for the columns whose type is null; the same object if
    there are none.
    """
    for place, field in enumerate(known):
        if pa.types.is_null(field.type) and field.name in schema.names:
            found = schema.field(field.name)
            if not pa.types.is_null(found.type):
                known = known.set(place, found)
    return known


@dataclass(frozen=True, slots=True)
class MadeTable:
    """A table, the position of each of its rows in the input, and an error for every other row."""

    table: Any
    positions: Sequence[int]
    errors: Mapping[int, BaseException]


def of_rows(rows: Sequence[Any], schema: Any, *, are_named: bool = False) -> MadeTable:
    """The table of the rows that fit. Rows are sequences, or mappings if `are_named`. Raises
    `KeyError` for a mapping without one of the columns.
    """
    keys = schema.names if are_named else range(len(schema))

    def chosen(positions: Sequence[int]) -> Sequence[Sequence[Any]]:
        kept = rows if len(positions) == len(rows) else [rows[each] for each in positions]
        return [list(map(itemgetter(key), kept)) for key in keys]

    return _made(len(rows), chosen, schema, of_values)


def of_columns(columns: Any, schema: Any) -> MadeTable:
    """The table of the rows that fit, from columns with the schema's names."""

    def chosen(positions: Sequence[int]) -> Sequence[Any]:
        if len(positions) == len(columns):
            return list(columns.columns)
        return [column.take(pa.array(positions, pa.int64())) for column in columns.columns]

    return _made(len(columns), chosen, schema, of_column)


def _made(
    size: int,
    chosen: Callable[[Sequence[int]], Sequence[Any]],
    schema: Any,
    make: Callable[[Any, Any], Any],
) -> MadeTable:
    positions: Sequence[int] = range(size)
    columns, errors = made_columns(schema, chosen(positions), make)
    if errors:
        positions = [position for position in positions if position not in errors]
        if not positions:
            return MadeTable(schema.empty_table(), positions, errors)
        columns, _ = made_columns(schema, chosen(positions), make)
    return MadeTable(pa.Table.from_arrays(columns, schema=schema), positions, errors)


@dataclass(frozen=True, slots=True)
class ParquetEncoder:
    """Writes Parquet files with options of `pyarrow.parquet.write_table`."""

    options: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        compression: str,
        row_group_rows: int | None,
        options: Mapping[str, Any],
        schema: Any,
    ) -> ParquetEncoder:
        """Validate the options. Raises `ConfigError` for an option that pyarrow refuses, or a
        schema that Parquet cannot represent.
        """
        ours = {"compression": compression, "row_group_size": row_group_rows}
        for name in ours.keys() & options.keys():
            raise bad(f"writer_options[{name!r}]", options[name], "has its own argument")
        made = cls({**options, **ours})
        try:
            made.file(pa.table({"x": pa.array([], pa.int64())}))
        except Exception as error:
            raise bad("writer_options", dict(options), f"pyarrow refuses them ({error})") from error
        if schema is not None and (trouble := made.trouble_with(schema)):
            raise bad("schema", str(schema), f"Parquet cannot represent it ({trouble})")
        return made

    def trouble_with(self, schema: Any) -> str | None:
        """Why no file can have this schema; `None` if files can have it."""
        try:
            self.file(schema.empty_table())
        except PermanentError as error:
            return str(error)
        return None

    def file(self, table: Any) -> memoryview:
        """A file with the rows of a table, as bytes. Raises `PermanentError` if pyarrow refuses a
        type, or a value for the sake of `writer_options`.
        """
        into = pa.BufferOutputStream()
        try:
            parquet.write_table(table, into, **self.options)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise caused(PermanentError(f"the file cannot be encoded: {error}"), error) from error
        return memoryview(into.getvalue()).cast("B")  # obstore expects unsigned bytes
