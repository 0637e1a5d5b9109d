"""Batches whose items are the rows of an Arrow record batch.

This module does not import pyarrow; it uses only the methods of the record batch.

A value without a Python equivalent affects only its own row:

1. Some Arrow values have no Python equivalent: text that is not UTF-8, dates and timestamps outside
   the years 1 to 9999, times in zones that Python does not know. `to_pylist` raises for the whole
   column.
2. Rows are then created value by value. An *unreadable* row is refused with `PermanentError`, which
   names the column and the reason.
3. A dead letter shows an unreadable value as text: bytes that are not UTF-8 as escapes, dates and
   timestamps as their number in the unit of the column, counted from 1970.
4. A map is a dictionary, at any depth; pyarrow itself returns a list of pairs. A map that has a key
   twice, or a key that Python cannot hash, is unreadable, and is shown as that list.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

from .batch import Batch
from .delivery.delivery import Delivery
from .errors import PermanentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .batch import Lineage

    Convert = Callable[[Any], Any]


Row = dict[str, Any]
TIME_ZONE = b"sluicegate.time_zone"
"""Schema metadata key: the time zone of dates and timestamps without a zone; UTC if missing."""


class ArrowBatch(Batch[Row]):
    """A batch of columns: `record_batch` for sinks of columns, iteration for a dictionary per row.

    All rows are created together, at the first iteration or indexing. This raises `UnreadableRows`
    if a value of a row has no Python equivalent; `send` then refuses these rows and sends the
    others.
    """

    __slots__ = ("_record_batch", "_rows", "_unreadable")

    def __init__(
        self,
        record_batch: Any,
        *,
        lineage: Lineage | None = None,
        delivery: Delivery | None = None,
        origins: Sequence[int] | None = None,
        attempt: int = 1,
        keys: Sequence[object] | None = None,
    ) -> None:
        self._record_batch = record_batch
        self._rows: list[Row] | None = None
        self._unreadable: dict[int, PermanentError] = {}
        delivery = Delivery(len(self)) if delivery is None else delivery
        super().__init__(lineage, delivery, origins=origins, attempt=attempt, keys=keys)

    @property
    def record_batch(self) -> Any:
        """The `pyarrow.RecordBatch`."""
        return self._record_batch

    @property
    def size_bytes(self) -> int | None:
        """Size of the columns in Arrow's memory format, in bytes."""
        return int(self._record_batch.nbytes)

    @property
    def rows(self) -> list[Row]:
        """Return all rows as dictionaries: 100 times slower than columns.

        Raises `UnreadableRows`.
        """
        rows = self._made()
        if self._unreadable:
            first = next(iter(self._unreadable.values()))
            many = f"{len(self._unreadable)} of {len(rows)} rows"
            raise UnreadableRows(f"{many} cannot be made into Python's objects; the first: {first}")
        return rows

    def unreadable(self) -> Mapping[int, PermanentError]:
        """Return the rows with values that have no Python equivalent, and their errors."""
        self._made()
        return self._unreadable

    def shown(self, index: int) -> Row:
        """Return the row at `index`, with its unreadable values as text."""
        return self._made()[index]

    def _made(self) -> list[Row]:
        if self._rows is None:
            self._rows, self._unreadable = rows_of(self._record_batch)
        return self._rows

    def __len__(self) -> int:
        return int(self._record_batch.num_rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def _select(self, indices: Sequence[int], attempt: int) -> ArrowBatch:
        return ArrowBatch(
            _taken(self._record_batch, indices),
            lineage=self.lineage,
            delivery=self.delivery,
            origins=self.roots(indices),
            attempt=attempt,
            keys=None if self.keys is None else [self.keys[i] for i in indices],
        )

    def _on(self, delivery: Delivery, attempt: int | None = None) -> ArrowBatch:
        return ArrowBatch(
            self._record_batch,
            lineage=self.lineage,
            delivery=delivery,
            origins=self._origins,
            attempt=self.attempt if attempt is None else attempt,
            keys=self.keys,
        )


def _taken(record_batch: Any, indices: Sequence[int]) -> Any:
    """Return these rows; without a copy if they are consecutive."""
    if isinstance(indices, range) and indices.step == 1:
        return record_batch.slice(indices.start, len(indices))
    return record_batch.take(list(indices)) if len(indices) else record_batch.slice(0, 0)


class UnreadableRows(PermanentError):
    """Some rows of a batch hold values without a Python equivalent."""


def values_of(column: Any) -> tuple[list[Any], dict[int, str]]:
    """Return a column's values, with unreadable ones as text, and the reasons for these."""
    convert = _converter(column.type)
    try:
        values = column.to_pylist()
        return (values if convert is None else [*map(convert, values)]), {}
    except Exception:
        return _one_by_one(column)


def rows_of(record_batch: Any) -> tuple[list[dict[str, Any]], dict[int, PermanentError]]:
    """Return all rows as dictionaries, with unreadable values as text, and their errors."""
    schema = record_batch.schema
    names: list[str] = schema.names
    if not any(map(_converter, schema.types)):
        try:
            return record_batch.to_pylist(), {}
        except Exception:  # noqa: S110  # below, column by column
            pass
    columns: list[list[Any]] = []
    errors: dict[int, PermanentError] = {}
    for place, name in enumerate(names):
        values, unreadable = values_of(record_batch.column(place))
        columns.append(values)
        for index, why in unreadable.items():
            errors.setdefault(index, refusal(name, why))
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)], errors


def refusal(name: str, why: str) -> PermanentError:
    """Return the error of a row whose value in this column cannot be written."""
    return PermanentError(f"column {name!r}: {why}")


def _one_by_one(column: Any) -> tuple[list[Any], dict[int, str]]:
    values: list[Any] = []
    unreadable: dict[int, str] = {}
    for index, scalar in enumerate(column):
        try:
            convert, value = _converter(scalar.type), scalar.as_py()
            values.append(value if convert is None else convert(value))
        except Exception as error:
            values.append(_shown(scalar))
            unreadable[index] = _reason(scalar, error)
    return values, unreadable


# -- maps ------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _converter(kind: Any) -> Convert | None:
    """Return the conversion of pyarrow's Python values of this type; `None` if it has no maps."""
    text = str(kind)
    if "map<" not in text:
        return None
    if text.startswith("map<"):
        return _of_map(_converter(kind.key_type), _converter(kind.item_type))
    if text.startswith("struct<"):
        fields = {
            each.name: _converter(each.type) for each in map(kind.field, range(kind.num_fields))
        }
        return _of_struct({name: each for name, each in fields.items() if each is not None})
    inner = _converter(getattr(kind, "value_type", None))
    return inner and _of_list(inner)


def _of_map(key: Convert | None, item: Convert | None) -> Convert:
    def convert(pairs: Sequence[tuple[Any, Any]] | None) -> dict[Any, Any] | None:
        if pairs is None:
            return None
        made = {
            name if key is None else key(name): value if item is None else item(value)
            for name, value in pairs
        }
        if len(made) < len(pairs):
            raise ValueError("a key of the map occurs twice")
        return made

    return convert


def _of_struct(fields: dict[str, Convert]) -> Convert:
    def convert(value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        return value | {name: each(value[name]) for name, each in fields.items()}

    return convert


def _of_list(inner: Convert) -> Convert:
    def convert(values: Sequence[Any] | None) -> list[Any] | None:
        return None if values is None else [*map(inner, values)]

    return convert


# -- unreadable values -----------------------------------------------------------------------------


def _reason(scalar: Any, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "holds bytes that are not UTF-8"
    return f"holds a {scalar.type} that Python has no object for ({type(error).__name__}: {error})"


def _shown(scalar: Any) -> Any:
    """Return an unreadable value as text, or as a list or dictionary of its parts."""
    kind = str(scalar.type)
    if hasattr(scalar, "as_buffer"):
        return scalar.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
    if kind.startswith("struct"):
        return {name: _one_by_one([each])[0][0] for name, each in scalar.items()}
    if kind.startswith("map"):
        pairs = [tuple(entry.values()) for entry in values_of(scalar.values)[0]]
        try:
            return _of_map(None, None)(pairs)
        except (TypeError, ValueError):
            return pairs
    if hasattr(scalar, "values") and scalar.values is not None:
        return values_of(scalar.values)[0]
    return str(getattr(scalar, "value", scalar))
