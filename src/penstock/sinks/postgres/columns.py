"""Columns of Arrow as PostgreSQL's binary COPY, without a Python object per value.

1. A field is its length and its bytes, big-endian. Values of a fixed width are a matrix of bytes;
   values of any width are joined to their lengths by Arrow. A row is its fields behind their
   number, joined the same way. What comes out is the buffer that is sent.
2. What the server would refuse for one row is found in the columns first, as far as it can be seen
   there, and named by its row; then the columns are cast to what the table's columns take
   (`_postgres_values`), for this way and for that of rows alike.
3. What has no encoder here goes the way of rows. There a row is refused alone if it holds a value
   that Python has no object for.

The format: https://www.postgresql.org/docs/current/sql-copy.html#id-1.9.3.55.9.4, and the `*_recv`
functions of each type.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from ..._core.arrow import TIME_ZONE
from ..._core.arrow_rows import refusal
from .rows import LazyRows
from .types import takes
from .values import faults, fitted, objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..._core.errors import PermanentError
    from .table import Column

pc: Any = compute  # its functions are made when it is imported, where no checker sees them

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
NULL = b"\xff\xff\xff\xff"
_EPOCH_DAYS = 10_957
"""From 1970-01-01 to 2000-01-01, where PostgreSQL begins to count."""
_EPOCH_MICROSECONDS = 946_684_800_000_000
_DIGITS = 4
"""Decimal digits in one of numeric's."""
_NEGATIVE = 0x4000
_SPECIAL = {("F", 0): 0xD000, ("F", 1): 0xF000}
_NAN = 0xC000
_LARGEST_NUMERIC = 18
"""Digits of a decimal that fits into 64 bits."""


class NoEncoder(Exception):  # says so
    """This column has to go by rows."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A type of fixed width: what Arrow casts it to, what its bytes are, and where it begins to
    count.
    """

    arrow: Any
    bytes: str
    zero: int = 0


_FIXED: dict[str, Fixed] = {
    "smallint": Fixed(pa.int16(), ">i2"),
    "integer": Fixed(pa.int32(), ">i4"),
    "bigint": Fixed(pa.int64(), ">i8"),
    "real": Fixed(pa.float32(), ">f4"),
    "double precision": Fixed(pa.float64(), ">f8"),
    "boolean": Fixed(pa.uint8(), ">u1"),
    "date": Fixed(pa.date32(), ">i4", _EPOCH_DAYS),
    "timestamp without time zone": Fixed(pa.timestamp("us"), ">i8", _EPOCH_MICROSECONDS),
    "timestamp with time zone": Fixed(pa.timestamp("us", "UTC"), ">i8", _EPOCH_MICROSECONDS),
    "time without time zone": Fixed(pa.time64("us"), ">i8"),
}
_COUNTED = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "date",
        "timestamp without time zone",
        "timestamp with time zone",
    }
)
"""Types whose values are whole numbers: what differs in Arrow differs in the table."""
_TEXTS = frozenset({"text", "character varying", "json", "xml"})
_ELEMENT_OIDS = {
    "smallint": 21, "integer": 23, "bigint": 20, "real": 700, "double precision": 701, "boolean": 16, "date": 1082, "numeric": 1700,
    "timestamp without time zone": 1114, "timestamp with time zone": 1184, "text": 25, "character varying": 1043, "uuid": 2950,
}  # fmt: skip


# -- encoding --------------------------------------------------------------------------------------


def encoded(batch: Any, columns: Sequence[Column], places: Any = None) -> memoryview:
    """The rows as binary COPY, with their places in front where they are given. Raises `NoEncoder`
    for a column that has none.
    """
    for column in columns:
        if not takes(
            column, batch.schema.field(column.name).type
        ):  # bytes of a number may be those of a date as well
            raise NoEncoder(column.name)
    fields = [_fields(batch.column(column.name), column.loose) for column in columns]
    if places is not None:
        fields.insert(0, _fields(pa.array(places), "integer"))
    head = pa.scalar(len(fields).to_bytes(2, "big"), pa.binary())
    rows = (
        pc.binary_join_element_wise(head, *fields, b"")
        if batch.num_rows
        else pa.array([], pa.binary())
    )
    offsets = np.frombuffer(rows.buffers()[1], dtype=np.int32)[
        rows.offset : rows.offset + len(rows) + 1
    ]
    body = rows.buffers()[2].to_pybytes()[offsets[0] : offsets[-1]] if batch.num_rows else b""
    return memoryview(b"".join((HEADER, body, TRAILER)))


def _fields(values: Any, kind: str) -> Any:
    """One column's fields, lengths included, as an array of binary without nulls."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if kind.endswith("[]"):
        return _arrays(values, kind.removesuffix("[]"))
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return _with_nulls(_matrix(values, fixed), values)
    if kind == "uuid":
        return _with_nulls(_uuids(values), values)
    if kind == "numeric":
        if pa.types.is_decimal128(values.type) and values.type.precision <= _LARGEST_NUMERIC:
            return _with_nulls(_numerics(values), values)
        return _of_any_width(_numerics_one_by_one(values))
    if kind in _TEXTS or kind == "jsonb":
        return _of_any_width(_as_text(values), prefix=b"\1" if kind == "jsonb" else b"")
    if kind == "bytea":
        if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
            raise NoEncoder(kind)
        return _of_any_width(values.cast(pa.binary()))
    raise NoEncoder(kind)


def _matrix(values: Any, fixed: Fixed) -> Any:
    """The values' bytes, a row each; whatever stands where there is none."""
    try:
        if pa.types.is_floating(values.type) and pa.types.is_integer(fixed.arrow):
            raise NoEncoder(str(values.type))
        cast = values.cast(fixed.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise NoEncoder(str(error)) from error
    width = np.dtype(fixed.bytes)
    plain = cast.view(_integer(width)) if fixed.zero or pa.types.is_temporal(fixed.arrow) else cast
    numbers = pc.fill_null(plain, 0).to_numpy(zero_copy_only=False)
    shifted = numbers - fixed.zero if fixed.zero else numbers
    return (
        np.ascontiguousarray(shifted.astype(width))
        .view(np.uint8)
        .reshape(len(values), width.itemsize)
    )


def _integer(width: np.dtype[Any]) -> Any:
    return pa.int32() if width.itemsize == 4 else pa.int64()


def _uuids(values: Any) -> Any:
    if pa.types.is_fixed_size_binary(values.type) and values.type.byte_width == 16:
        plain = b"".join(value or bytes(16) for value in values.to_pylist())
    elif _is_text(values.type):
        digits = pc.replace_substring(pc.fill_null(values, "0" * 32), "-", "")
        if not pc.all(pc.match_substring_regex(digits, "^[0-9a-fA-F]{32}$")).as_py() and len(
            values
        ):
            raise NoEncoder("uuid")
        plain = bytes.fromhex("".join(digits.to_pylist()))
    else:
        raise NoEncoder("uuid")
    return np.frombuffer(plain, np.uint8).reshape(len(values), 16)


def _numerics(values: Any) -> Any:
    """Decimals of up to 18 digits, as so many of numeric's digits, each of four; the server strips
    what is zero.
    """
    scale = values.type.scale
    after = -(-max(scale, 0) // _DIGITS)
    raw = np.frombuffer(values.buffers()[1], dtype="<i8")[
        2 * values.offset : 2 * (values.offset + len(values)) : 2
    ]
    negative = raw < 0
    number = np.abs(raw).astype(
        object if values.type.precision + _DIGITS * after - scale > _LARGEST_NUMERIC else np.uint64
    )
    number = number * 10 ** (_DIGITS * after - scale)
    count = after + -(-max(values.type.precision - scale, 1) // _DIGITS)
    out = np.zeros((len(values), 4 + count), dtype=">u2")
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = (
        count,
        (count - after - 1) % 65_536,
        np.where(negative, 0x4000, 0),
        max(scale, 0),
    )
    for place in range(count - 1, -1, -1):
        out[:, 4 + place] = number % 10_000
        number = number // 10_000
    return out.view(np.uint8)


def _numerics_one_by_one(values: Any) -> Any:
    """Any other number: a double as the shortest decimal that reads back as it, which is the text
    that Arrow makes of it.
    """
    kind = values.type
    if not (pa.types.is_decimal(kind) or pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise NoEncoder(str(kind))
    texts = values.cast(pa.string()) if not pa.types.is_decimal(kind) else values
    return pa.array(
        [None if each is None else numeric_bytes(Decimal(each)) for each in texts.to_pylist()],
        pa.binary(),
    )


def numeric_bytes(value: Decimal) -> bytes:
    """What `numeric_recv` reads: the number of digits, the weight of the first, the sign, the
    decimal places, the digits.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return struct.pack(">HhHH", 0, 0, _SPECIAL.get((exponent, sign), _NAN), 0)
    shift = exponent % _DIGITS
    number = int("".join(map(str, digits))) * 10**shift
    groups: list[int] = []
    while number:
        number, group = divmod(number, 10_000)
        groups.append(group)
    weight = (exponent - shift) // _DIGITS + len(groups) - 1 if groups else 0
    head = struct.pack(
        ">HhHH", len(groups), weight, _NEGATIVE if sign and groups else 0, max(-exponent, 0)
    )
    return head + struct.pack(f">{len(groups)}H", *reversed(groups))


def _with_nulls(matrix: Any, values: Any) -> Any:
    """Fields of a fixed width, four bytes where there is no value."""
    rows, width = matrix.shape
    fields = np.empty((rows, 4 + width), np.uint8)
    fields[:, :4] = np.frombuffer(width.to_bytes(4, "big"), np.uint8)
    fields[:, 4:] = matrix
    lengths = np.full(rows, 4 + width, np.int64)
    data = fields.reshape(-1)
    if values.null_count:
        absent = pc.is_null(values).to_numpy(zero_copy_only=False)
        fields[absent, :4] = 0xFF
        lengths[absent] = 4
        keep = np.ones(fields.shape, bool)
        keep[absent, 4:] = False
        data = fields[keep]
    return _binary(data, lengths)


def _binary(data: Any, lengths: Any) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(),
        len(lengths),
        [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())],
    )


def _of_any_width(values: Any, *, prefix: bytes = b"") -> Any:
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(
        np.int64
    ) + len(prefix)
    absent = pc.is_null(values).to_numpy(zero_copy_only=False)
    lengths = np.where(absent, -1, sizes).astype(">i4")
    width = pa.Array.from_buffers(
        pa.binary(4), len(values), [None, pa.py_buffer(lengths.tobytes())]
    ).cast(pa.binary())
    filled = pc.fill_null(values.cast(pa.binary()), b"")
    if not prefix:
        return pc.binary_join_element_wise(width, filled, b"")
    marks = pa.array([b"" if gone else prefix for gone in absent.tolist()], pa.binary())
    return pc.binary_join_element_wise(width, marks, filled, b"")


def _arrays(values: Any, kind: str) -> Any:
    """Arrays of one dimension."""
    oid = _ELEMENT_OIDS.get(kind)
    if oid is None or not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        raise NoEncoder(f"{kind}[]")
    flat = values.flatten()
    sizes = (
        pc.fill_null(pc.list_value_length(values), 0)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
    )
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    elements = _fields(flat, kind)
    bodies = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements), b"")
    heads = np.zeros((len(values), 5), ">i4")
    heads[:, 0], heads[:, 1], heads[:, 2], heads[:, 3], heads[:, 4] = (
        1,
        int(flat.null_count > 0),
        oid,
        sizes,
        1,
    )
    empty = sizes == 0
    heads[empty, 0] = 0
    head_bytes = heads.view(np.uint8).reshape(len(values), 20)
    lengths = np.where(empty, 12, 20)
    keep = np.arange(20)[None, :] < lengths[:, None]
    joined = pc.binary_join_element_wise(_binary(head_bytes[keep], lengths), bodies, b"")
    if values.null_count:
        joined = pc.if_else(pc.is_valid(values), joined, pa.scalar(None, pa.binary()))
    return _of_any_width(joined)


def _as_text(values: Any) -> Any:
    if not _is_text(values.type):
        raise NoEncoder(str(values.type))
    return values.cast(pa.string())


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


# -- several rows of one key -----------------------------------------------------------------------


def latest(key: Sequence[Any], version: Any = None) -> Any:
    """The places of the rows that stay when a row replaces the earlier ones of its key, in order;
    `None` where all of them stay.

    With `version` the last one of the highest version stays; NULL is below all. A key that holds
    NULL is nobody's equal. Values that the server takes for equal, and Arrow does not, stay side by
    side.
    """
    count = len(key[0])
    codes, alone = np.zeros(count, np.int64), np.zeros(count, bool)
    for column in key:
        if pa.types.is_floating(column.type):  # 0.0 and -0.0, NaN
            return None
        found = pc.dictionary_encode(column)
        alone |= pc.is_null(column).to_numpy(zero_copy_only=False)
        absent = len(found.dictionary)
        numbers = pc.fill_null(found.indices.cast(pa.int64()), absent).to_numpy(
            zero_copy_only=False
        )
        codes = np.unique(codes * (absent + 1) + numbers, return_inverse=True)[1]
    order = (
        np.arange(count)
        if version is None
        else pc.array_sort_indices(version, null_placement="at_start").to_numpy()
    )
    last = np.empty(count, np.int64)
    last[codes[order]] = order  # of several values for one place the last one stays
    stays = alone
    stays[last[np.unique(codes)]] = True
    return None if stays.all() else np.flatnonzero(stays)


def _is_counted(kind: Any) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_date32(kind)
        or kind.equals(pa.timestamp("us", getattr(kind, "tz", None)))
    )


# -- the rows of one write -------------------------------------------------------------------------


class ColumnRows(LazyRows):
    """The rows of a record batch; `places` are theirs in the write, where that is not simply their
    order.
    """

    def __init__(self, batch: Any, columns: Sequence[Column], places: Any = None) -> None:
        self._batch = batch
        self._columns = columns
        self._places = places
        self._fitted: Any = None
        self._rows: list[tuple[Any, ...]] | None = None
        self._unreadable: dict[int, PermanentError] = {}

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def __getitem__(self, place: Any) -> Any:
        return self._made()[place]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._made())

    def kept(self, places: Sequence[int]) -> ColumnRows:
        """Only the rows at these places."""
        return ColumnRows(self._batch.take(pa.array(places, pa.int64())), self._columns)

    def by(self, columns: Sequence[Column]) -> ColumnRows:
        """The same rows for columns of other types."""
        return ColumnRows(self._batch, columns)

    def refused(self) -> dict[int, PermanentError]:
        """The rows that the server would refuse, as far as their values show it, with the
        reason.
        """
        return refused(self._batch, self._columns)

    def unreadable(self) -> dict[int, PermanentError]:
        """The rows that hold a value which Python has no object for. Makes the rows."""
        self._made()
        return self._unreadable

    def place(self, line: int) -> int:
        """The place in the write of the row that stands at `line`."""
        return line if self._places is None else int(self._places[line])

    def tells_apart(self, key: Sequence[str]) -> bool:
        """Whether values of these columns that differ here also differ for the server."""
        kinds = {column.name: column.loose for column in self._columns}
        return all(
            kinds[name] in _COUNTED and _is_counted(self._values.column(name).type) for name in key
        )

    def latest(self, key: Sequence[str], version: str | None) -> ColumnRows:
        """Without the rows that a later one of their key replaces."""
        values = self._values
        places = latest(
            [values.column(name) for name in key],
            None if version is None else values.column(version),
        )
        return (
            self
            if places is None
            else ColumnRows(self._batch.take(pa.array(places)), self._columns, places)
        )

    def encoded(self, *, places: bool) -> memoryview | None:
        """The rows as binary COPY; `None` where a column has no encoder."""
        try:
            return encoded(
                self._values,
                self._columns,
                self._places if self._places is not None or not places else np.arange(len(self)),
            )
        except NoEncoder:
            return None

    @property
    def _values(self) -> Any:
        """The columns as the table takes them. There must be no faults in them."""
        if self._fitted is None:
            zone = (self._batch.schema.metadata or {}).get(TIME_ZONE, b"UTC").decode()
            made = [
                fitted(self._batch.column(column.name), column.loose, zone)
                for column in self._columns
            ]
            self._fitted = pa.RecordBatch.from_arrays(
                made, names=[column.name for column in self._columns]
            )
        return self._fitted

    def _made(self) -> list[tuple[Any, ...]]:
        if self._rows is None:
            columns: list[list[Any]] = []
            for column in self._columns:
                values, unreadable = objects(self._values.column(column.name))
                columns.append(values)
                for index, why in unreadable.items():
                    self._unreadable.setdefault(index, refusal(column.name, why))
            self._rows = list(zip(*columns, strict=True))
        return self._rows


def refused(batch: Any, columns: Sequence[Column]) -> dict[int, PermanentError]:
    """The rows that the server would refuse, as far as their values show it, with the reason."""
    found: dict[int, PermanentError] = {}
    for column in columns:
        values = batch.column(column.name)
        if column.not_null and values.null_count:
            _note(
                found,
                column.name,
                "is NULL, and the column is NOT NULL",
                pc.is_null(values).to_numpy(zero_copy_only=False),
            )
        for why, mask in faults(values, column.loose, column.exact):
            _note(found, column.name, why, mask)
    return found


def _note(found: dict[int, PermanentError], name: str, why: str, mask: Any) -> None:
    for index in np.flatnonzero(mask).tolist():
        found.setdefault(index, refusal(name, why))


def column_rows(batch: Any, columns: Sequence[Column]) -> ColumnRows | None:
    """The rows of a record batch; `None` where a column is missing."""
    if not {column.name for column in columns} <= set(batch.schema.names):
        return None
    return ColumnRows(batch, columns)
