"""Items encoded to records, the bytes of one item each: an item that cannot be encoded fails alone."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .._core.causes import caused
from .._core.errors import PermanentError
from .._core.told import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable

Encode = Callable[[Any], "bytes | str"]


def ndjson(records: Sequence[bytes]) -> bytes:
    """Each record on a line of its own, the last one too."""
    return b"\n".join((*records, b""))


def _plain(value: object) -> object:
    """What JSON has no form for."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(
        f"{type(value).__name__} has no form in JSON; pass encode=, a function from an item "
        "to bytes"
    )


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def to_json(item: object) -> bytes:
    """An item as JSON in UTF-8, on one line. Raises `TypeError` or `ValueError` for what JSON has
    no form for, NaN included.
    """
    return _JSON.encode(item).encode()


_MARK = secrets.token_hex(16)
"""What no item holds."""
_BETWEEN = f',"{_MARK}",'


def json_texts(items: Sequence[object]) -> list[str]:
    """What `to_json` makes of each item, as text and in less than half the time: one call for all
    of them, with marks between.

    Quotes inside a text are escaped, so a mark with its quotes stands nowhere but between two
    items.
    """
    if not items:
        return []
    marked: list[object] = [_MARK] * (2 * len(items) - 1)
    marked[::2] = items
    return _JSON.encode(marked)[1:-1].split(_BETWEEN)


def all_to_json(items: Sequence[object]) -> list[bytes]:
    """What `to_json` makes of each item."""
    return [text.encode() for text in json_texts(items)]


def one_line(encode: Encode) -> Encode:
    """`encode`, but a record that would be taken for two is an error."""

    def line(item: Any) -> bytes:
        record = _bytes(encode(item))
        if b"\n" in record:
            raise ValueError("a record of newline-delimited JSON must not hold a newline")
        return record

    return line


@dataclass(frozen=True, slots=True)
class Records:
    """What a batch's items became: records beside the indices of their items, and an error for each
    other index.
    """

    indices: Sequence[int]
    records: Sequence[bytes]
    errors: dict[int, BaseException]


def encoded(
    all_of: Callable[..., list[bytes]], each: Callable[..., bytes | str], *columns: Sequence[Any]
) -> Records:
    """Make a record of each item (and what lies beside it in further columns). Does not suspend.

    `all_of` makes all of them at once; where it raises, `each` finds the items that are at fault.
    """
    try:
        records = all_of(*columns)
    except Exception:
        return _one_by_one(each, zip(*columns, strict=True))
    return Records(range(len(records)), records, {})


def encoded_items(encode: Encode | None, items: Sequence[Any], *, lines: bool) -> Records:
    """A record of each item, by `encode` or as JSON; `lines`: one that would be taken for two is an
    error. Does not suspend.
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
    """The error of one item. Its message may quote the item; what logs show does not."""
    made = PermanentError(f"the item {what}: {type(cause).__name__}: {text_of(cause)}")
    made.summary = f"the item {what} ({type(cause).__name__})"
    return caused(made, cause)


def _bytes(record: object) -> bytes:
    if type(record) is bytes:
        return record
    if isinstance(record, str):
        return record.encode()
    if isinstance(record, (bytes, bytearray)):
        return bytes(record)
    raise TypeError(f"encode returned {type(record).__name__}; expected bytes or str")
