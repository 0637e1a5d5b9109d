"""Items as the parts of records: key, value, headers, timestamp, topic and partition.

All items of a batch are converted together, column by column. If that raises, each item is
converted alone, so that only the faulty ones fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..._core import checks
from ..._core.loading import NotLoaded
from ..._core.text import repr_of
from ..._core.trace_context import unless_given
from ..._core.values.encoding import all_to_json, getter, item_error, to_json
from ..arguments import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._core.trace_context import TraceHeaders
    from ..._core.values.encoding import Getter

Headers = list[tuple[str, bytes | None]]
NO_HEADERS: Headers = []
_LONG = 1 << 63


@dataclass(frozen=True, slots=True)
class Columns:
    """The parts of records with the indices of their items, and an error for every other item.

    `None` instead of a column means the same for every record: no key, no headers, the time of
    sending, the sink's topic, a partition by key.
    """

    indices: Sequence[int]
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    timestamps: Sequence[int | None] | None = None
    topics: Sequence[str] | None = None
    partitions: Sequence[int | None] | None = None
    errors: dict[int, BaseException] = field(default_factory=dict[int, BaseException])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMaker:
    """Functions from an item to the parts of its record."""

    key: Getter | None
    value: Getter | None
    headers: Getter | None
    timestamp: Getter | None
    topic: Getter | None
    partition: Getter | None

    @property
    def places_by_key(self) -> bool:
        """Whether the batcher's keys determine topics and partitions."""
        return self.key is None and self.topic is None and self.partition is None

    def columns(self, items: Sequence[Any], keys: Sequence[object] | None) -> Columns:
        """The parts of all items' records; `keys` are the batcher's, used if there is no key
        function.

        Does not suspend. Raises `NotLoaded` if a function needs a schema that is not loaded.
        """
        try:
            return self._all(range(len(items)), items, keys)
        except NotLoaded:
            raise
        except Exception:
            return self._each(items, keys)

    def _all(
        self, indices: Sequence[int], items: Sequence[Any], keys: Sequence[object] | None
    ) -> Columns:
        values = self._values(items)
        found = keys if self.key is None else list(map(self.key, items))
        encoded = None if found is None else as_bytes(found)
        if None in values and (encoded is None or _is_empty(encoded, values)):
            raise ValueError("a record without a value (a tombstone) needs a key")
        return Columns(
            indices,
            values,
            encoded,
            _mapped(self.headers, items, _headers),
            _mapped(self.timestamp, items, _milliseconds),
            _mapped(self.topic, items, _topic),
            _mapped(self.partition, items, _number),
        )

    def _values(self, items: Sequence[Any]) -> list[bytes | None]:
        if self.value is None:
            kinds = {*map(type, items)}
            if kinds <= {bytes}:
                return list(items)
            if bytes in kinds:
                return [item if type(item) is bytes else to_json(item) for item in items]
            return [*all_to_json(items)]
        return list(map(_value, map(self.value, items)))

    def _each(self, items: Sequence[Any], keys: Sequence[object] | None) -> Columns:
        good: list[Columns] = []
        errors: dict[int, BaseException] = {}
        for index, item in enumerate(items):
            try:
                good.append(self._all((index,), (item,), None if keys is None else (keys[index],)))
            except NotLoaded:
                raise
            except Exception as error:
                errors[index] = item_error("cannot become a record", error)
        return _join(good, errors)


def _join(parts: Sequence[Columns], errors: dict[int, BaseException]) -> Columns:
    """Join columns of one item each into columns of all items."""
    if not parts:
        return Columns((), (), errors=errors)
    columns = {
        each.name: None
        if getattr(parts[0], each.name) is None
        else [getattr(part, each.name)[0] for part in parts]
        for each in fields(Columns)
        if each.name != "errors"
    }
    return Columns(**columns, errors=errors)  # type: ignore[arg-type]  # by name


def with_trace(columns: Columns, traces: Sequence[TraceHeaders] | None) -> Columns:
    """Add the trace context of each item to the headers of its record."""
    if traces is None:
        return columns
    own = repeat(NO_HEADERS) if columns.headers is None else columns.headers
    headers: list[Headers] = []
    for index, given in zip(columns.indices, own, strict=False):
        trace = unless_given(traces[index], (name for name, _ in given))
        headers.append([*given, *((name, value.encode()) for name, value in trace.items())])
    return replace(columns, headers=headers)


def as_bytes(keys: Sequence[object]) -> list[bytes | None]:
    """Keys as bytes: bytes unchanged, text in UTF-8, anything else as JSON."""
    kinds = {*map(type, keys)}
    if kinds <= {str}:
        return [*map(str.encode, cast("Sequence[str]", keys))]
    if kinds <= {bytes}:
        return list(cast("Sequence[bytes]", keys))
    return list(map(_key, keys))


def _key(key: object) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, bytearray):
        return bytes(key)
    if isinstance(key, str):
        return key.encode()
    text = to_json(key)
    return json.loads(text).encode() if text[:1] == b'"' else text


def _value(value: object) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise TypeError(f"the value is {type(value).__name__}; expected bytes, a string or None")


def _is_empty(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> bool:
    return any(key is None and value is None for key, value in zip(keys, values, strict=True))


def _mapped(
    function: Getter | None, items: Sequence[Any], check: Callable[[Any], Any]
) -> list[Any] | None:
    return None if function is None else [check(function(item)) for item in items]


def _headers(given: object) -> Headers:
    if given is None:
        return NO_HEADERS
    pairs = cast("Any", given.items() if isinstance(given, Mapping) else given)
    return [_header(each) for each in pairs]


def _header(given: Any) -> tuple[str, bytes | None]:
    """A header from a pair, or from a mapping with `key` and `value`, which is the form of Spark's
    rows.
    """
    if isinstance(given, Mapping):
        given = given["key"], given["value"]
    name, value = given
    return _name(name), _value(value)


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"a header's name is {type(name).__name__}; expected a non-empty string")
    name.encode()  # an encoding error fails only this item
    return name


def _topic(value: object) -> str:
    if not isinstance(value, str) or not TOPIC.fullmatch(value):
        raise ValueError(
            f"{repr_of(value)} is not a valid topic name; use letters, digits, '.', '_', '-'"
        )
    return value


def _milliseconds(value: object) -> int | None:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError("the timestamp has no time zone")
        value = round(value.timestamp() * 1000)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"the timestamp is {type(value).__name__}; expected milliseconds")
    if value is not None and not 0 <= value < _LONG:
        raise ValueError("the timestamp is not a valid number of milliseconds since 1970")
    return value


def _number(value: object) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"the partition is {type(value).__name__}; expected a whole number")
    return value


@dataclass(frozen=True, slots=True)
class RecordParts:
    """The parts that are given as a field or a function; the others have their defaults."""

    given: frozenset[str]
    fields: Mapping[str, str]
    """Field names by argument."""

    @classmethod
    def of(cls, **arguments: object) -> RecordParts:
        """Find the field names among the validated arguments."""
        given = frozenset(name for name, value in arguments.items() if value is not None)
        return cls(given, {n: value for n, value in arguments.items() if isinstance(value, str)})

    @property
    def has_place(self) -> bool:
        """Whether each record has its own key or partition."""
        return not self.given.isdisjoint({"key", "partition"})


def part(name: str, value: object) -> Getter | None:
    """The function that gets a part from an item; `None` if none is given. Raises `ConfigError`."""
    if callable(value):
        checks.optional_function(name, value, "must be a field's name or a function of an item")
    return getter(name, value)


class RecordMetadata(NamedTuple):
    """The place of a stored record; the details of its item's receipt."""

    topic: str
    partition: int
    offset: int
    """-1 if the broker knows that the record is stored, but no longer at which offset."""
