"""A Python `Decimal` as numeric."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal

_DIGITS = 4
"""Decimal digits in one digit of numeric."""
_NEGATIVE = 0x4000
_SPECIAL = {("F", 0): 0xD000, ("F", 1): 0xF000}
_NAN = 0xC000


def numeric_bytes(value: Decimal) -> bytes:
    """Return the form for `numeric_recv`: digit count, weight, sign, decimal places, digits."""
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
