"""Items encoded as records of bytes, by default JSON; an item that cannot be encoded fails alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..causes import caused
from ..errors import ConfigError, PermanentError
from ..told import for_log, text_of
from .forms import json_form

if TYPE_CHECKING:
    from collections.abc import Iterable

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


_MARK = os.urandom(16).hex()
"""A text that no item contains."""
_BETWEEN = f',"{_MARK}",'


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
    """Encode each item, with its values of further columns. Does not suspend.

    `all_of` encodes all items at once; if it raises, `each` finds the faulty items.
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
            field = _field_at_fault(row[0]) if encode is to_json else ""
            errors[index] = item_error(f"cannot be encoded{field}", error)
        else:
            indices.append(index)
            records.append(record)
    return Records(indices, records, errors)


def item_error(what: str, cause: Exception) -> PermanentError:
    """Return the error of one item. Its message may quote the item, its log summary does not."""
    made = PermanentError(f"the item {what}: {type(cause).__name__}: {text_of(cause)}")
    told = type(cause).__name__ if isinstance(cause, ConfigError) else for_log(cause)
    return caused(made, cause, summary=f"the item {what} ({told})")


def _field_at_fault(item: object) -> str:
    """Name the first field of a mapping whose value has no form in JSON; empty if there is none."""
    if isinstance(item, Mapping):
        for name, value in cast("Mapping[object, object]", item).items():
            try:
                _JSON.encode(value)
            except Exception:
                return f" (field {name!r})" if isinstance(name, str) and name.isidentifier() else ""
    return ""


def _bytes(record: object) -> bytes:
    if type(record) is bytes:
        return record
    if isinstance(record, str):
        return record.encode()
    if isinstance(record, (bytes, bytearray)):
        return bytes(record)
    raise TypeError(f"encode returned {type(record).__name__}; expected bytes or str")
