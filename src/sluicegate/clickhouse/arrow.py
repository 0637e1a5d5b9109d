"""Batches as Arrow record batches with a table's columns, and request bodies made from them.

A body is a stream of one record batch, so the server forms one block from it and refuses a
truncated stream.

Arrow columns with the types of a table, from Python values or from columns of other types.

1. The types are those that ClickHouse accepts without a conversion that could change a value: see
   `values`. Text, UUIDs, addresses and names of enums are bytes, which the server parses.
2. Arrow converts all values in one call if they are of plain types, or if Arrow is strict enough
   for the column's type. Other values are converted by the rules of `values`.
3. A column of another type is cast, and only without loss. Fractions of a second beyond the
   precision of the type are truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from pyarrow import compute

from .._core.errors import ConfigError, PermanentError
from .._core.values.encoding import Records, item_error, to_json
from .values import UnfitValue, ValueRule, rule_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .values import ColumnType


# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


MakeArray = Callable[["TargetColumn", Any], Any]
_NUMBERS = {
    **{f"Int{bits}": pa.type_for_alias(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"UInt{bits}": pa.type_for_alias(f"uint{bits}") for bits in (8, 16, 32, 64)},
    "Float32": pa.float32(),
    "BFloat16": pa.float32(),
    "Float64": pa.float64(),
    "Bool": pa.bool_(),
    "Date": pa.date32(),
    "Date32": pa.date32(),
    "DateTime": pa.timestamp("s", "UTC"),
    "JSON": pa.string(),
    "Time": pa.string(),
    "Time64": pa.string(),
    **dict.fromkeys(
        ("String", "FixedString", "UUID", "IPv4", "IPv6", "Enum8", "Enum16"), pa.binary()
    ),
}
"""The Arrow type of each ClickHouse type that always has the same one."""
_STRICT = frozenset(
    {"String", "FixedString", "UUID", "IPv4", "IPv6", "Enum8", "Enum16", "Float64", "Bool"}
)
"""Types for which Arrow accepts only values that the rules accept, except nulls."""
_LONG = {"Int128": 16, "UInt128": 16, "Int256": 32, "UInt256": 32}
"""Bytes of whole numbers that Arrow has no type for."""
_UNITS = ("s", "ms", "ms", "ms", "us", "us", "us", "ns", "ns", "ns")
"""Arrow's unit of a time, by its number of decimal places."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SECONDS = {"DateTime": (0, 2**32), "DateTime64": (-2_208_988_800, 10_413_792_000)}
"""The range of a time in seconds since 1970, without its end."""
_DAYS = {"Date": (0, 2**16), "Date32": (-25_567, 120_530)}
"""The range of a date in days since 1970, without its end."""
_MISFITS = (ValueError, TypeError, OverflowError, pa.ArrowException)
"""What Arrow raises for a value that it cannot convert."""
pc: Any = compute
"""Untyped: its functions are created at import."""


class ArrowRecords(Sequence[Any]):
    """Rows of a record batch, as the records of request bodies. A slice is a sequence of the same
    kind; a single row stands only for its length, the average of all rows.
    """

    def __init__(self, record_batch: Any) -> None:
        self.record_batch = record_batch
        self._length = range(-(-record_batch.nbytes // max(1, record_batch.num_rows)))

    def __len__(self) -> int:
        return int(self.record_batch.num_rows)

    @overload
    def __getitem__(self, index: int) -> range: ...
    @overload
    def __getitem__(self, index: slice) -> ArrowRecords: ...
    def __getitem__(self, index: int | slice) -> range | ArrowRecords:
        if isinstance(index, int):
            return self._length
        start, stop, _ = index.indices(len(self))
        return ArrowRecords(self.record_batch.slice(start, stop - start))


def ipc_stream(records: Any) -> bytes:
    """The request body for these `ArrowRecords`."""
    record_batch = records.record_batch
    output = pa.BufferOutputStream()
    with pa.ipc.new_stream(output, record_batch.schema) as writer:
        writer.write_batch(record_batch)
    return bytes(output.getvalue())


class ArrowRows:
    """Builds record batches of these columns of a table. Raises `ConfigError` for types that Arrow
    does not have.
    """

    def __init__(self, columns: Mapping[str, ColumnType], table: str) -> None:
        self._table = table
        self._targets = {name: _target(name, kind) for name, kind in columns.items()}

    join = staticmethod(ipc_stream)

    def of_rows(
        self,
        indices: Sequence[int],
        rows: Sequence[Sequence[Any]],
        errors: dict[int, BaseException],
    ) -> Records:
        """Records of rows of Python values; a row with an invalid value gets an error."""
        columns = [*self._targets.values()]
        values = list(zip(*rows, strict=True)) if rows else [() for _ in columns]
        return _records(columns, indices, values, errors, make=TargetColumn.of_values, pick=_pick)

    def of_columns(self, record_batch: Any, names: Sequence[str]) -> Records:
        """Records of these columns of a record batch; a row with an invalid value gets an error.
        Raises `PermanentError` for a column that is missing from the batch or the table, or whose
        type never fits.
        """
        has = record_batch.schema.names
        for name in names:
            if name not in has:
                raise PermanentError(f"the batch has no column {name!r}; it has {has}")
            if name not in self._targets:
                raise PermanentError(
                    f"{self._table} has no column {name!r} that accepts values; drop it, or give "
                    "columns="
                )
        columns = [self._targets[name] for name in names]
        found = [record_batch.column(name) for name in names]
        for column, each in zip(columns, found, strict=True):
            try:
                column.check_type(each.type)
            except UnfitType as error:
                raise PermanentError(f"column {column.name!r}: {error}") from error
        indices = range(record_batch.num_rows)
        return _records(columns, indices, found, {}, make=TargetColumn.of_column, pick=_take)

    def refused(self, schema: Any) -> dict[str, str]:
        """The columns of a schema whose types never fit, with the remedy for each."""
        found: dict[str, str] = {}
        for name, target in self._targets.items():
            if name in schema.names:
                try:
                    target.check_type(schema.field(name).type)
                except UnfitType as error:
                    found[name] = f"{error}; cast it"
        return found


def _target(name: str, kind: ColumnType) -> TargetColumn:
    try:
        return TargetColumn(name, kind)
    except UnfitType as error:
        rule = 'give format="json", or columns= without it'
        raise ConfigError(f"columns={name!r}: {error}; {rule}") from error


def _records(
    columns: Sequence[TargetColumn],
    indices: Sequence[int],
    values: Sequence[Any],
    errors: dict[int, BaseException],
    *,
    make: MakeArray,
    pick: Callable[[Any, Sequence[int]], Any],
) -> Records:
    arrays: list[Any] = []
    bad: dict[int, BaseException] = {}
    for column, each in zip(columns, values, strict=True):
        try:
            arrays.append(make(column, each))
        except Exception:  # an invalid value: the slow path finds it
            bad = _bad_places(column, each, make) | bad
    if bad:
        errors.update({indices[place]: error for place, error in bad.items()})
        places = [place for place in range(len(indices)) if place not in bad]
        arrays = [
            make(column, pick(each, places)) for column, each in zip(columns, values, strict=True)
        ]
        indices = [indices[place] for place in places]
    made = pa.RecordBatch.from_arrays(arrays, [column.name for column in columns])
    return Records(indices, ArrowRecords(made), errors)


def _bad_places(column: TargetColumn, values: Any, make: MakeArray) -> dict[int, BaseException]:
    bad: dict[int, BaseException] = {}
    for place in range(len(values)):
        try:
            make(column, values[place : place + 1])
        except Exception as error:
            bad[place] = item_error(f"does not fit the column {column.name!r}", error)
    return bad


def _pick(values: Any, places: Sequence[int]) -> list[Any]:
    return [values[place] for place in places]


def _take(column: Any, places: Sequence[int]) -> Any:
    return column.take(pa.array(places, pa.int64()))


# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


# -- columns ---------------------------------------------------------------------------------------


class UnfitType(ValueError):
    """No value of a column's Arrow type can be stored in the table's column, or Arrow has no
    equivalent of the table's type.
    """


class TargetColumn:
    """A column of the table. Raises `UnfitType` for a type that Arrow does not have."""

    def __init__(self, name: str, kind: ColumnType) -> None:
        self.name = name
        self._kind = kind
        self.type = arrow_type(kind)
        self._form = _form_of(kind)
        rule = rule_of(kind)
        if kind.head in _SECONDS:
            plain: set[type] = {datetime, type(None)} if kind.is_nullable else {datetime}
            rule = ValueRule(rule.convert, frozenset(plain))
        elif self._form is not None or kind.head in _LONG:
            rule = ValueRule(rule.convert)
        self._rule = rule
        self._is_strict = kind.head in _STRICT
        self._fits: set[Any] = set()

    def of_values(self, values: Sequence[Any]) -> Any:
        """Convert Python values to an array. Raises the error of the first invalid value."""
        rule, form = self._rule, self._form
        if self._is_strict or rule.plain.issuperset(map(type, values)):
            with suppress(*_MISFITS):  # the conversion below raises a clearer error
                made = pa.array(values, self.type)
                if self._kind.is_nullable or not made.null_count:
                    _check_range(self._kind, made)
                    return made
        converted = list(map(rule.convert, values))
        if form is not None:
            converted = [None if each is None else form(each) for each in converted]
        return pa.array(converted, self.type)

    def of_column(self, column: Any) -> Any:
        """Convert a column to an array of the table's type. Raises `UnfitType`, or the error of an
        invalid value.
        """
        if self._kind.inner:  # checks of a slice would include values outside it
            column = column.take(pa.array(range(len(column)), pa.int64()))
        made = self._cast(column)
        _check_nulls(self._kind, made)
        _check_range(self._kind, made)
        return made

    def check_type(self, given: Any) -> None:
        """Raise `UnfitType` for an Arrow type whose columns cannot be cast."""
        if given not in self._fits:
            self._cast(pa.array([], given))
            self._fits.add(given)

    def _cast(self, column: Any) -> Any:
        given = column.type
        if given == self.type:
            return column
        _check_kinds(self._kind, given)
        options = pc.CastOptions(target_type=self.type, allow_time_truncate=True)
        try:
            made = pc.cast(column, options=options)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise UnfitType(f"{given} does not fit {self._kind.text}") from error
        if pa.types.is_float32(self.type) and pc.any(pc.is_inf(made)).as_py():
            found = pc.sum(pc.cast(pc.is_inf(column.cast(pa.float64())), pa.int64())).as_py()
            if pc.sum(pc.cast(pc.is_inf(made), pa.int64())).as_py() != found:
                raise UnfitValue(f"a number that is not in the range of {self._kind.text}")
        return made


def arrow_type(kind: ColumnType) -> Any:
    """The Arrow type for a column's type. Raises `UnfitType`."""
    found = _NUMBERS.get(kind.head)
    if found is not None:
        return found
    if kind.head in _LONG:
        return pa.binary(_LONG[kind.head])
    match kind.head:
        case "DateTime64":
            return pa.timestamp(_UNITS[kind.scale], "UTC")
        case "Decimal":
            make = pa.decimal128 if kind.precision <= 38 else pa.decimal256
            return make(kind.precision, kind.scale)
        case "Array":
            return pa.list_(arrow_type(kind.inner[0]))
        case "Map":
            return pa.map_(*map(arrow_type, kind.inner))
        case "Tuple":
            fields = zip(kind.names, map(arrow_type, kind.inner), strict=True)
            return pa.struct([pa.field(name, each) for name, each in fields])
        case _:
            raise UnfitType(f"Arrow has no type for {kind.text}")


def _form_of(kind: ColumnType) -> Callable[[Any], Any] | None:
    """The conversion from a value to the form that Arrow takes, if it is not the value itself."""
    if kind.head in _LONG:
        length, signed = _LONG[kind.head], kind.head.startswith("Int")
        return lambda value: value.to_bytes(length, "little", signed=signed)
    if kind.head == "JSON":
        return lambda value: to_json(value).decode()
    inner = [_form_of(each) for each in kind.inner]
    match kind.head:
        case "Array" if inner[0] is not None:
            element = _unless_none(inner[0])
            return lambda value: [element(each) for each in value]
        case "Map":
            key, item = map(_unless_none, inner)
            return lambda value: [(key(name), item(each)) for name, each in value.items()]
        case "Tuple":
            forms = tuple(map(_unless_none, inner))
            names = kind.names

            def fields(value: Any) -> dict[str, Any]:
                given = value.values() if isinstance(value, dict) else value
                made = (form(each) for form, each in zip(forms, given, strict=True))
                return dict(zip(names, made, strict=True))

            return fields
        case _:
            return None


def _unless_none(form: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if form is None:
        return lambda value: value
    return lambda value: None if value is None else form(value)


def _check_kinds(kind: ColumnType, given: Any) -> None:
    """Raise `UnfitType` for casts that Arrow supports but that change the meaning here."""
    types = pa.types
    if types.is_null(given):
        return
    is_whole = types.is_integer(given)
    if (
        (kind.head == "Bool" and not types.is_boolean(given))
        or (kind.head in _DAYS and not (types.is_date(given) or _is_text(given)))
        or (kind.head == "DateTime64" and is_whole)
        or (kind.head in _LONG and _is_text(given))
    ):
        raise UnfitType(f"{given} does not fit {kind.text}")


def _is_text(given: Any) -> bool:
    types = pa.types
    return bool(types.is_string(given) or types.is_large_string(given))


def _check_nulls(kind: ColumnType, array: Any) -> None:
    if array.null_count and not kind.is_nullable:
        raise UnfitValue(f"NULL for a column of {kind.text}, which is not Nullable")
    match kind.head:
        case "Array":
            _check_nulls(kind.inner[0], array.flatten())
        case "Map":
            for inner, each in zip(kind.inner, (array.keys, array.items), strict=True):
                _check_nulls(inner, each)
        case "Tuple":
            for inner, each in zip(kind.inner, array.flatten(), strict=True):
                _check_nulls(inner, each)
        case _:
            pass


def _check_range(kind: ColumnType, array: Any) -> None:
    """Raise `UnfitValue` for days and times outside the range of the type, at any depth."""
    limits = _SECONDS.get(kind.head) or _DAYS.get(kind.head)
    if limits is not None:
        per = _PER_SECOND[array.type.unit] if kind.head in _SECONDS else 1
        found = pc.min_max(array)
        low, high = found["min"].value, found["max"].value
        if low is not None and not limits[0] * per <= low <= high < limits[1] * per:
            raise UnfitValue(f"a value that is not in the range of {kind.text}")
    elif kind.head == "Array":
        _check_range(kind.inner[0], array.flatten())
    elif kind.head == "Map":
        for inner, each in zip(kind.inner, (array.keys, array.items), strict=True):
            _check_range(inner, each)
    elif kind.head == "Tuple":
        for inner, each in zip(kind.inner, array.flatten(), strict=True):
            _check_range(inner, each)
