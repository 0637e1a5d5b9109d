"""The binary format of `COPY`: the parts around the fields, the epochs of dates and times, and numeric.

The format: https://www.postgresql.org/docs/current/sql-copy.html#id-1.9.3.55.9.4, and the `*_recv`
functions of each type.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal


HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The signature, no flags, and no extension."""
TRAILER = b"\xff\xff"
EPOCH_DAYS = 10_957
"""Days from 1970-01-01 to 2000-01-01, PostgreSQL's epoch."""
EPOCH_MICROSECONDS = EPOCH_DAYS * 86_400_000_000
JSONB_VERSION = b"\1"
"""The byte before the text of a jsonb value."""
DIGITS = 4
"""Decimal digits in one digit of numeric."""
NEGATIVE = 0x4000
"""The sign of a numeric below 0."""
_SPECIAL = {("F", 0): 0xD000, ("F", 1): 0xF000}
_NAN = 0xC000


def numeric_bytes(value: Decimal) -> bytes:
    """Return the form for `numeric_recv`: digit count, weight, sign, decimal places, digits."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return struct.pack(">HhHH", 0, 0, _SPECIAL.get((exponent, sign), _NAN), 0)
    shift = exponent % DIGITS
    number = int("".join(map(str, digits))) * 10**shift
    groups: list[int] = []
    while number:
        number, group = divmod(number, 10_000)
        groups.append(group)
    weight = (exponent - shift) // DIGITS + len(groups) - 1 if groups else 0
    head = struct.pack(
        ">HhHH", len(groups), weight, NEGATIVE if sign and groups else 0, max(-exponent, 0)
    )
    return head + struct.pack(f">{len(groups)}H", *reversed(groups))
