"""Items encoded as records of bytes, by default JSON; an item that cannot be encoded fails alone.

Values without a native JSON type have a form:

1. An object becomes its fields, by the names of its attributes. `PostgresSink` reads items by the
   same names, so an item has the same fields in a file, in a request and in a row.
2. A pydantic model determines its own form (`model_dump` in JSON mode), so its serializers and
   excluded fields apply. Names are those of its fields, not aliases, because of (1).
3. A named tuple becomes a list, at any depth: `PostgresSink` also stores it by position.
4. Enum members become their values; a set becomes a list, sorted if its members can be compared.
5. Subclasses of `str`, `int`, `float`, `list`, `tuple` and `dict` never get here: they are native
   JSON types.
6. Bytes have no form, since it is unknown whether they are text. Objects of plain classes have none
   either.

Imports no optional package before a value needs it.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from operator import attrgetter
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from ..checks import bad
from ..classify import caused
from ..errors import ConfigError, PermanentError
from ..logs import for_log
from ..text import text_of

Form = Callable[[Any], object]

_ADDRESSES = (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)

_MARK = os.urandom(16).hex()
"""A text that no item contains."""
_BETWEEN = f',"{_MARK}",'


class MakesForm(ABC):
    """A value that provides its own JSON form."""

    __slots__ = ()

    @abstractmethod
    def as_json(self) -> object:
        """Return its form, made of values that have a JSON form."""


def json_form(value: object) -> object:
    """Return the JSON form of a value; its members may also need conversion. Raises `TypeError`."""
    form = form_for(value)
    if form is None:
        raise TypeError(
            f"{type(value).__name__} has no form in JSON; convert the item by encode=, document= "
            "or row=, a function that the sink takes"
        )
    return form(value)


def form_for(value: object) -> Form | None:
    """Return the function that creates the JSON form of values of this type; `None` without any."""
    return _form_of(cast("Any", type(value)))


@lru_cache(maxsize=1024)
def _form_of(kind: type) -> Form | None:
    for known, form in _FORMS:
        if issubclass(kind, known):
            return form
    if hasattr(kind, "model_dump") and hasattr(kind, "__pydantic_validator__"):
        return _dumped
    names = field_names(kind)
    return None if names is None else _object(names)


def field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the fields of a dataclass, or of a class of attrs or msgspec; `None` for another one."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in kind.__attrs_attrs__)
    if hasattr(kind, "__struct_fields__"):  # msgspec
        return tuple(kind.__struct_fields__)
    return None


def _object(names: tuple[str, ...]) -> Form:
    if len(names) < 2:
        return lambda value: {name: getattr(value, name) for name in names}
    values_of = attrgetter(*names)
    return lambda value: dict(zip(names, values_of(value), strict=True))


def _dumped(model: Any) -> object:
    # a warning about a wrong type would contain the value
    return model.model_dump(mode="json", by_alias=False, warnings=False)


def _sorted(values: Iterable[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return list(values)


def _duration(value: timedelta) -> str:
    """Format a duration in ISO 8601."""
    sign, whole = ("-", -value) if value < timedelta() else ("", value)
    fraction = f".{whole.microseconds:06}" if whole.microseconds else ""
    return f"{sign}P{whole.days}DT{whole.seconds}{fraction}S"


_FORMS: tuple[tuple[type | tuple[type, ...], Form], ...] = (
    (MakesForm, lambda value: value.as_json()),
    (Enum, lambda value: value.value),
    (Mapping, dict),
    ((date, time), lambda value: value.isoformat()),
    (timedelta, _duration),
    ((UUID, Decimal, PurePath, *_ADDRESSES), str),
    ((set, frozenset), _sorted),
    (SimpleNamespace, lambda value: {**cast("dict[str, Any]", vars(value))}),
)


Encode = Callable[[Any], "bytes | str"]
"""Encodes an item; text is sent as UTF-8."""


def ndjson(records: Sequence[bytes]) -> bytes:
    """Join records into lines, each ended by a newline."""
    return b"\n".join((*records, b""))


_JSON = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=json_form
)


def to_json(item: object) -> bytes:
    """Encode an item as one line of JSON in UTF-8.

    Raises `TypeError` or `ValueError` for a value without a JSON form, such as NaN.
    """
    return _JSON.encode(item).encode()


def json_texts(items: Sequence[object]) -> list[str]:
    """Encode each item as `to_json` does, as text, in less than half the time.

    One call encodes all items, with marks between them. Quotes inside a text are escaped, so a
    quoted mark occurs only between two items.
    """
    if not items:
        return []
    marked: list[object] = [_MARK] * (2 * len(items) - 1)
    marked[::2] = items
    return _JSON.encode(marked)[1:-1].split(_BETWEEN)


def all_to_json(items: Sequence[object]) -> list[bytes]:
    """Encode each item as `to_json` does."""
    return [text.encode() for text in json_texts(items)]


def one_line(encode: Encode) -> Encode:
    """Wrap `encode` to reject a record that contains a newline."""

    def line(item: Any) -> bytes:
        record = _bytes(encode(item))
        if b"\n" in record:
            raise ValueError("a record of newline-delimited JSON must not hold a newline")
        return record

    return line


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a batch with the indices of their items, and an error for each other index."""

    indices: Sequence[int]
    records: Sequence[bytes]
    errors: dict[int, BaseException]


def encoded(
    all_of: Callable[..., list[bytes]], each: Callable[..., bytes | str], *columns: Sequence[Any]
) -> Records:
    """Encode each item, with its values of additional columns. Does not suspend.

    `all_of` encodes all items in one call; if it raises, `each` finds the faulty items.
    """
    with suppress(Exception):
        records = all_of(*columns)
        return Records(range(len(records)), records, {})
    return _one_by_one(each, zip(*columns, strict=True))


def encoded_items(encode: Encode | None, items: Sequence[Any], *, lines: bool) -> Records:
    """Encode each item with `encode` or as JSON. Does not suspend.

    With `lines`, a newline in a record is an error.
    """
    if encode is None:
        return encoded(all_to_json, to_json, items)
    each = one_line(encode) if lines else encode
    return encoded(partial(_each, each), each, items)


def _each(encode: Encode, items: Sequence[Any]) -> list[bytes]:
    return list(map(_bytes, map(encode, items)))


def _one_by_one(encode: Callable[..., bytes | str], rows: Iterable[tuple[Any, ...]]) -> Records:
    indices: list[int] = []
    records: list[bytes] = []
    errors: dict[int, BaseException] = {}
    for index, row in enumerate(rows):
        try:
            record = _bytes(encode(*row))
        except Exception as error:
            errors[index] = item_error("cannot be encoded", error)
        else:
            indices.append(index)
            records.append(record)
    return Records(indices, records, errors)


def item_error(what: str, cause: Exception) -> PermanentError:
    """Return the error of one item. Its message may quote the item, its log summary does not."""
    made = PermanentError(f"the item {what}: {type(cause).__name__}: {text_of(cause)}")
    told = type(cause).__name__ if isinstance(cause, ConfigError) else for_log(cause)
    return caused(made, cause, summary=f"the item {what} ({told})")


def _bytes(record: object) -> bytes:
    if type(record) is bytes:
        return record
    if isinstance(record, str):
        return record.encode()
    if isinstance(record, (bytes, bytearray)):
        return bytes(record)
    raise TypeError(f"encode returned {type(record).__name__}; expected bytes or str")


Getter = Callable[[Any], Any]


def getter(name: str, value: object) -> Getter | None:
    """Return a function of an item for a function or a field's name. Raises `ConfigError`."""
    if value is None or callable(value):
        return value
    if not isinstance(value, str) or not value:
        raise bad(name, value, "must be a field's name or a function of an item")
    return _Field(value)


class _Field:
    """Returns a field's value: an entry of a mapping, or an attribute of another object."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, item: Any) -> Any:
        if isinstance(item, Mapping):
            return cast("Mapping[str, Any]", item)[self._name]
        return getattr(item, self._name)


def compressed(content: bytes, compression: str | None) -> bytes:
    """Compress a body or a chunk of a file. Blocks for the duration."""
    if compression == "gzip":
        return gzip.compress(content, compresslevel=6, mtime=0)
    if compression == "zstd":
        import zstandard  # an optional dependency

        return zstandard.ZstdCompressor().compress(content)
    return content
