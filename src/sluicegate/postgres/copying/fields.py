"""One value of a row as a field of binary `COPY`, for each type of column.

1. A type has one exact Python class whose values it packs without further checks, and a function
   for other values: `None`, and values with unambiguous bytes. The function raises `Declined` for
   the rest: subclasses, numpy scalars, naive datetimes for `timestamptz`, a time of day with a zone
   for `time`, extremes that asyncpg converts to infinity.
2. Fixed-width values are packed together with their neighbours; others are separate bytes.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .wire import EPOCH_DAYS, JSONB_VERSION, NULL

if TYPE_CHECKING:
    from collections.abc import Callable


_UUID = re.compile("[0-9a-fA-F-]{32,36}")
_HEX_DIGITS = 32
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal() + EPOCH_DAYS

GIVEN: dict[str, Any] = {
    "EPOCH": datetime(2000, 1, 1),  # noqa: DTZ001  # for columns without a time zone
    "EPOCH_UTC": datetime(2000, 1, 1, tzinfo=UTC),
    "EARLIEST": -63_082_281_600_000_000,
    "LATEST": 252_455_615_999_999_999,
    "EPOCH_ORDINAL": _EPOCH_ORDINAL,
    "FIRST_DAY": date.min.toordinal(),
    "LAST_DAY": date.max.toordinal(),
    "JSONB_VERSION": JSONB_VERSION,
    "date": date,
    "datetime": datetime,
    "time": time,
    "timedelta": timedelta,
    "UUID": UUID,
}
"""The names that the templates use in addition to builtins.

`EARLIEST` and `LATEST` are the microseconds of the first and the last `datetime`, which asyncpg
treats as infinity, as it does the first and the last day.
"""


class Declined(Exception):  # a signal, not an error
    """These rows must be sent by asyncpg, which accepts or refuses them."""


@dataclass(frozen=True, slots=True)
class Field:
    """The packing of values of one type; `{v}` in a template is the value's name."""

    python: str
    """The exact class of the values that the templates pack."""
    value: str
    """The packed value or values, or the bytes of a variable-width value."""
    others: dict[type, Callable[[Any], bytes]]
    """Functions for other classes, which return the bytes of their values."""
    code: str = ""
    """The `struct` format of the value; empty for variable-width bytes."""
    before: tuple[str, ...] = ()
    """Statements that the value needs."""
    gain: int = 0
    """Additional nanoseconds that asyncpg needs per value; negative if asyncpg is faster."""

    def whole(self, value: object) -> bytes:
        """Return the field of a value that the templates do not pack. Raises `Declined`."""
        if value is None:
            return NULL
        encode = self.others.get(type(value))
        if encode is None:
            raise Declined
        body = encode(value)
        return len(body).to_bytes(4, "big") + body


def _packed(code: str) -> Callable[[Any], bytes]:
    return struct.Struct(f">{code}").pack


def _integer(code: str) -> Field:
    return Field("int", "{v}", {bool: _packed(code)}, code, gain=-45)


def _float(code: str) -> Field:
    pack = _packed(code)
    return Field("float", "{v}", {int: pack, bool: pack}, code, gain=-45)


def _moment(epoch: str, gain: int) -> Field:
    return Field(
        "datetime",
        "m{v}",
        {},
        "q",
        (
            f"d{{v}} = {{v}} - {epoch}",
            "m{v} = (d{v}.days * 86400 + d{v}.seconds) * 1000000 + d{v}.microseconds",
            "if not EARLIEST < m{v} < LATEST: raise Declined",
        ),
        gain,
    )


def _uuid_bytes(text: str) -> bytes:
    digits = text.replace("-", "")
    if _UUID.fullmatch(text) is None or len(digits) != _HEX_DIGITS:
        raise Declined
    return bytes.fromhex(digits)


_TEXT = Field("str", "{v}.encode()", {}, gain=-60)
FIELDS: dict[str, Field] = {
    "smallint": _integer("h"),
    "integer": _integer("i"),
    "bigint": _integer("q"),
    "real": _float("f"),
    "double precision": _float("d"),
    "boolean": Field("bool", "{v}", {}, "?", gain=-45),
    "bytea": Field("bytes", "{v}", {}, gain=-45),
    **dict.fromkeys(("text", "character varying", "character", "bpchar", "name", "json"), _TEXT),
    "jsonb": Field("str", "JSONB_VERSION + {v}.encode()", {}, gain=-80),
    "uuid": Field("UUID", "{v}.bytes", {str: _uuid_bytes}, "16s", gain=-20),
    "date": Field(
        "date",
        "n{v} - EPOCH_ORDINAL",
        {},
        "i",
        ("n{v} = {v}.toordinal()", "if not FIRST_DAY < n{v} < LAST_DAY: raise Declined"),
        gain=-50,
    ),
    "time without time zone": Field(
        "time",
        "(({v}.hour * 60 + {v}.minute) * 60 + {v}.second) * 1000000 + {v}.microsecond",
        {},
        "q",
        ("if {v}.tzinfo is not None: raise Declined",),
        gain=-50,
    ),
    "timestamp without time zone": _moment("EPOCH", -50),
    "timestamp with time zone": _moment("EPOCH_UTC", 300),
    "interval": Field(
        "timedelta",
        "{v}.seconds * 1000000 + {v}.microseconds, {v}.days, 0",
        {},
        "qii",
        gain=-50,
    ),
}
"""The types with a packing, as PostgreSQL spells them."""
