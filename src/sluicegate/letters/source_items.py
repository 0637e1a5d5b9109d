"""Conversion of a source's record to the item of a dead letter, and back. Pure.

Bytes are stored as marks of `items.py`, so a restored item equals the record exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .._core.source import Record, UndecodableRecord

if TYPE_CHECKING:
    from .._core.source import SourceRecord

FIELDS = ("topic", "partition", "offset", "key", "value", "headers", "timestamp")

UNDECODABLE = "undecodable"
"""The field with the type of the error, of a record that its source could not decode."""


class NoSourceRecordError(ValueError):
    """An item that does not contain a source's record. The message gives the reason, without
    values.
    """


def item_of_record(record: SourceRecord) -> dict[str, Any]:
    """Return the item of a record's dead letter."""
    found = {name: getattr(record, name) for name in FIELDS}
    found["headers"] = [[name, value] for name, value in record.headers or ()]
    if type(record) is UndecodableRecord:
        found[UNDECODABLE] = type(record.error).__name__
    return found


def record_of_item(item: object) -> Record:
    """Return the record of a restored item. Raises `NoSourceRecordError`."""
    if not isinstance(item, dict):
        raise NoSourceRecordError("no mapping")
    found = cast("dict[str, Any]", item)
    if UNDECODABLE in found:
        raise NoSourceRecordError(f"could not be decoded by its source ({found[UNDECODABLE]})")
    if missing := [name for name in FIELDS if name not in found]:
        raise NoSourceRecordError(f"no {', '.join(missing)}")
    kinds = {"topic": str, "partition": int, "offset": int, "headers": list, "timestamp": int}
    wrong = [name for name, kind in kinds.items() if type(found[name]) is not kind]
    headers = found["headers"]
    if wrong or not all(map(_is_header, headers)):
        told = ", ".join(wrong) or "headers"
        raise NoSourceRecordError(f"{told} of the wrong type")
    return Record(
        **{name: found[name] for name in FIELDS if name != "headers"},
        headers=[(name, value) for name, value in headers],
    )


def _is_header(pair: Any) -> bool:
    """Return whether it is a name and a value. Some clients deliver headers without a value."""
    found = cast("list[Any]", pair)
    return isinstance(pair, list) and len(found) == 2 and isinstance(found[0], str)
