"""Items to records, records to request bodies: what cannot be encoded, or is too large by itself,
fails alone.

1. A record is one item's bytes. A *join* makes a body of records; only a joined body's real length
   is compared with the ceiling.
2. Records keep their order, within a body and from one body to the next.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..._core.causes import caused
from ..._core.errors import PermanentError
from ..._core.told import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable

Join = Callable[[Sequence[bytes]], "bytes"]
Encode = Callable[[Any], "bytes | str"]


def ndjson(records: Sequence[bytes]) -> bytes:
    """Each record on a line of its own, the last one too."""
    return b"\n".join((*records, b""))


def json_array(records: Sequence[bytes]) -> bytes:
    """One JSON array."""
    return b"[" + b",".join(records) + b"]"


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
            errors[index] = _for_item("cannot be encoded", error)
        else:
            indices.append(index)
            records.append(record)
    return Records(indices, records, errors)


def _for_item(what: str, cause: Exception) -> PermanentError:
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


@dataclass(frozen=True, slots=True)
class Body:
    """One request's body; `places` are its records' places among those of the batch."""

    places: range
    content: bytes


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies that carry a batch's records, in order; and an error at the place of each record
    that fits into none.
    """

    bodies: list[Body] = field(default_factory=list[Body])
    refused: dict[int, PermanentError] = field(default_factory=dict[int, PermanentError])


def bodies(
    records: Sequence[bytes], join: Join, most: int | None, places: range | None = None
) -> Bodies:
    """Bodies of at most `most` bytes for the records at `places` (default: all). Does not suspend.

    A record that is too long by itself, or that `join` raises for, is refused alone.
    """
    made = Bodies()
    _fill(made, records, join, most, range(len(records)) if places is None else places)
    return made


def _fill(
    made: Bodies, records: Sequence[bytes], join: Join, most: int | None, places: range
) -> None:
    if not places:
        return
    error: PermanentError | None = None
    content = b""
    try:
        content = bytes(join(records[places.start : places.stop]))
    except Exception as cause:
        error = _for_item("cannot be put into a body", cause)
    else:
        if most is None or len(content) <= most:
            made.bodies.append(Body(places, content))
            return
    if len(places) == 1:
        made.refused[places.start] = error or _too_long(len(content), most)
        return
    for part in _parts(records, most, places):
        _fill(made, records, join, most, part)


def halves(places: range) -> tuple[range, range]:
    """The two halves of what was too much at once."""
    middle = len(places) // 2
    return places[:middle], places[middle:]


def _parts(records: Sequence[bytes], most: int | None, places: range) -> Sequence[range]:
    """Cut by the lengths of the records and a byte between them; what a join adds beyond that shows
    when it is joined.
    """
    parts: list[range] = []
    first, length = places.start, 0
    for place in places:
        more = len(records[place]) + 1
        if most is not None and length + more > most and place > first:
            parts.append(range(first, place))
            first, length = place, 0
        length += more
    parts.append(range(first, places.stop))
    return parts if len(parts) > 1 else halves(places)


def _too_long(length: int, most: int | None) -> PermanentError:
    return PermanentError(
        f"the item alone makes a body of {length} bytes, more than max_bytes={most}"
    )


def compressed(content: bytes, compression: str | None) -> bytes:
    """A body as it is sent. Blocks for as long as compressing takes."""
    if compression == "gzip":
        return gzip.compress(content, compresslevel=6, mtime=0)
    if compression == "zstd":
        import zstandard  # an optional dependency

        return zstandard.ZstdCompressor().compress(content)
    return content
