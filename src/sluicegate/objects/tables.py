"""Arrow tables made from rows or columns, and their Parquet files.

Arrow columns made from rows or from other columns, without changing a value.

pyarrow itself truncates values that do not fit: a fraction becomes a whole number, a time loses its
fractions of a second, a datetime becomes a date, a time loses its zone, and a structure loses
fields that its type does not have. Here such a value is refused. Only floats may be rounded, to the
precision of their type; one that would become infinite is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyarrow import compute, parquet, types

from .._core.checks import bad
from .._core.classify import caused, summarized
from .._core.errors import PermanentError
from .._core.text import text_of

if TYPE_CHECKING:
    from collections.abc import Callable


# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


_RULE = "must be a pyarrow schema, or a mapping from names to types, such as {'id': 'int64'}"
_NONE = type(None)
_TEXTS = frozenset({pa.string(), pa.large_string(), pa.string_view()})
_BINARIES = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})
_TIMES = frozenset({datetime, _NONE})
_FINE = ("us", "ns")
"""The time units that can represent every Python value."""
pc: Any = compute  # its functions are created at import, so type checkers do not see them


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


def complete(known: Any, schema: Any) -> Any:
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

    return _build(len(rows), chosen, schema, of_values)


def of_columns(columns: Any, schema: Any) -> MadeTable:
    """The table of the rows that fit, from columns with the schema's names."""

    def chosen(positions: Sequence[int]) -> Sequence[Any]:
        if len(positions) == len(columns):
            return list(columns.columns)
        return [column.take(pa.array(positions, pa.int64())) for column in columns.columns]

    return _build(len(columns), chosen, schema, of_column)


def _build(
    size: int,
    chosen: Callable[[Sequence[int]], Sequence[Any]],
    schema: Any,
    make: Callable[[Any, Any], Any],
) -> MadeTable:
    positions: Sequence[int] = range(size)
    columns, errors = build_columns(schema, chosen(positions), make)
    if errors:
        positions = [position for position in positions if position not in errors]
        if not positions:
            return MadeTable(schema.empty_table(), positions, errors)
        columns, _ = build_columns(schema, chosen(positions), make)
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


# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


# -- columns ---------------------------------------------------------------------------------------


def build_columns(
    schema: Any, given: Sequence[Any], make: Callable[[Any, Any], Any]
) -> tuple[list[Any], dict[int, BaseException]]:
    """The columns that `make` creates from the given ones, and the errors of rows that do not fit."""
    columns: list[Any] = []
    errors: dict[int, BaseException] = {}
    for field, values in zip(schema, given, strict=True):
        try:
            columns.append(make(values, field))
        except Exception:
            errors |= _errors_of(values, field, make)
    return columns, errors


def _errors_of(
    values: Any, field: Any, make: Callable[[Any, Any], Any]
) -> dict[int, BaseException]:
    errors: dict[int, BaseException] = {}
    for index in range(len(values)):
        try:
            make(values[index : index + 1], field)
        except Exception as error:
            what = f"the item does not fit the column {field.name!r}"
            errors[index] = summarized(PermanentError(f"{what}: {text_of(error)}"), what)
    if not errors:
        raise TypeError(f"the column {field.name!r} cannot be created from its values together")
    return errors


def of_values(values: Sequence[Any], field: Any) -> Any:
    """Convert Python values to a column. Raises if a value does not fit the field or would change."""
    kind = field.type
    made = _of_whole_numbers(values, kind) if types.is_integer(kind) else None
    is_same = made is not None
    if made is None:
        made = pa.array(values, kind)
        is_same = _keeps(kind, values) and not _is_infinite(made)
    _require(made, field)
    if not is_same:
        for value, stored in zip(values, made.to_pylist(), strict=True):
            if not _same(value, stored):
                raise ValueError(f"the value would change when stored as {kind}")
    return made


def _of_whole_numbers(values: Sequence[Any], kind: Any) -> Any:
    """A column of values that pyarrow itself takes for whole numbers; `None` for any others.

    To convert and then check the type of each value would take half as long again.
    """
    with suppress(pa.ArrowException, OverflowError):
        made: Any = pa.array(values)
        if types.is_integer(made.type) or types.is_null(made.type):
            return made.cast(kind)
    return None


def of_column(column: Any, field: Any) -> Any:
    """Convert a column. Raises if a value, or the type, does not fit the field."""
    made = column if column.type == field.type else _convert(column, field.type)
    _require(made, field)
    return made


def _convert(column: Any, kind: Any) -> Any:
    if types.is_null(column.type):
        return column.cast(kind)
    if _family(column.type) != _family(kind):
        raise TypeError(f"a column of type {column.type} does not fit {kind}")
    if types.is_dictionary(column.type) and not types.is_dictionary(kind):
        column = column.dictionary_decode()
    made = column.cast(kind)  # raises if a value would be truncated, but rounds to a decimal
    if types.is_decimal(kind) and types.is_floating(column.type):
        is_same = made.cast(column.type).equals(column)
    else:
        is_same = not _is_infinite(made, beyond=column)
    if not is_same:
        raise ValueError(f"the value would change when stored as {kind}")
    return made


def _require(column: Any, field: Any) -> None:
    """Check that no value is missing where the field, at any depth, requires one."""
    if column.null_count and not field.nullable:
        raise ValueError("the value is missing, but the column requires one")
    for child, of in _children(column, field.type):
        _require(child, of)


def _children(column: Any, kind: Any) -> Sequence[tuple[Any, Any]]:
    """The columns inside a nested one, without those of missing values, and their fields."""
    if types.is_struct(kind):
        return [*zip(column.drop_null().flatten(), kind, strict=True)]
    if types.is_map(kind):
        return [(column.drop_null().items, kind.item_field)]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [(column.flatten(), kind.value_field)]
    return ()


def _is_infinite(column: Any, *, beyond: Any = None) -> bool:
    """Whether a number may have become infinite in a column of small floats."""
    if not types.is_floating(column.type) or column.type == pa.float64():
        return False
    found = pc.is_inf(column)
    if beyond is not None and types.is_floating(beyond.type):
        found = pc.and_not(found, pc.is_inf(beyond))
    return pc.any(found).as_py() is True


def _family(kind: Any) -> object:
    """The family of a type. Within a family, a cast preserves a value or raises."""
    if types.is_timestamp(kind):
        return ("timestamp", kind.tz is None)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_dictionary(kind):
        return _family(kind.value_type)
    if kind in _TEXTS:
        return "text"
    if kind in _BINARIES:
        return "binary"
    if types.is_time(kind):
        return "time"
    if types.is_date(kind):
        return "date"
    return "duration" if types.is_duration(kind) else kind


def _keeps(kind: Any, values: Sequence[Any]) -> bool:
    """Whether none of these values can change in a column of this type."""
    if types.is_timestamp(kind):
        return (
            kind.unit in _FINE
            and _TIMES.issuperset(map(type, values))
            and all((value.tzinfo is None) is (kind.tz is None) for value in values if value)
        )
    if types.is_integer(kind):
        return False  # those that can be kept are whole numbers, made above
    if types.is_date(kind):
        return {date, _NONE}.issuperset(map(type, values))
    if types.is_time(kind):
        return (
            kind.unit in _FINE
            and {time, _NONE}.issuperset(map(type, values))
            and all(value.tzinfo is None for value in values if value is not None)
        )
    return not (types.is_nested(kind) or types.is_duration(kind) or types.is_dictionary(kind))


def _same(given: Any, stored: Any) -> bool:
    """Whether a value that was read back equals the given one."""
    if isinstance(given, Mapping):
        named = cast("Mapping[Any, Any]", given)
        if isinstance(stored, list):  # pairs of a map
            stored = dict(cast("list[tuple[Any, Any]]", stored))
            return named.keys() == stored.keys() and _same_items(named, stored)
        return (
            isinstance(stored, dict)
            and named.keys() <= stored.keys()
            and _same_items(named, stored)
        )
    if isinstance(stored, (list, tuple)):
        if isinstance(given, (str, bytes, bytearray, memoryview)):
            return False  # it would become a list of its characters
        listed, values = list(given), cast("Sequence[Any]", stored)
        return len(listed) == len(values) and all(map(_same, listed, values))
    if isinstance(stored, float):
        return isinstance(given, (int, float)) and (
            math.isnan(given) if math.isnan(stored) else math.isclose(given, stored, rel_tol=1e-3)
        )
    if isinstance(given, datetime) != isinstance(stored, datetime):
        return False
    if isinstance(given, datetime):
        if (given.tzinfo is None) != (stored.tzinfo is None):
            return False
        if given.tzinfo is not None:  # in an hour that occurs twice, == is always false
            return bool(given.astimezone(UTC) == stored.astimezone(UTC))
    return bool(given == stored)


def _same_items(named: Mapping[Any, Any], stored: Any) -> bool:
    return all(_same(value, stored[key]) for key, value in named.items())
