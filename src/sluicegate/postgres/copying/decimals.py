"""Decimal columns as numeric: digits of base 10,000, most significant first.

1. The unscaled number is divided by powers of ten as one 64-bit word if every number fits,
   otherwise as four 32-bit words.
2. The number of digits before and after the decimal point follows from the precision and the scale.
   The server strips leading and trailing zeros.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import numpy as np

from .values import FixedValues

_DIGITS = 4
"""Decimal digits in one digit of numeric."""
_BASE = 10**_DIGITS
_NEGATIVE = 0x4000
_HEAD = 4
"""16-bit numbers before the digits: their count, the weight of the first, sign, scale."""
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class DecimalValues(FixedValues):
    """Values of decimal128 with a scale of 0 or more."""

    def __init__(self, words: Any, valid: Any, precision: int, scale: int) -> None:
        self._words = words
        self._scale = scale
        self._after = -(-scale // _DIGITS)
        self._count = self._after + -(-max(precision - scale, 1) // _DIGITS)
        super().__init__(f"V{2 * (_HEAD + self._count)}", valid)

    def array(self, start: int, stop: int) -> Any:
        """Return the values in the format that `numeric_recv` reads."""
        negative, words = _absolute(self._words[start:stop])
        out = np.empty((stop - start, _HEAD + self._count), ">u2")
        out[:, 0] = self._count
        out[:, 1] = (self._count - self._after - 1) % (1 << 16)
        out[:, 2] = np.where(negative, _NEGATIVE, 0)
        out[:, 3] = self._scale
        place, known = _HEAD + self._count, self._scale % _DIGITS
        if known:
            words, digit = _divided(words, 10**known)
            place -= 1
            out[:, place] = digit * np.uint64(10 ** (_DIGITS - known))
        while place > _HEAD:
            words, two = _divided(words, _BASE**2)
            first = two // np.uint64(_BASE)
            out[:, place - 1] = two - first * np.uint64(_BASE)
            if place - 2 >= _HEAD:
                out[:, place - 2] = first
            place -= 2
        return out.view(self.form)[:, 0]


def _absolute(words: Any) -> tuple[Any, list[Any]]:
    """Return which numbers are negative, and the words of their absolute values, highest first."""
    low: Any = words[:, 0]
    high: Any = words[:, 1]
    negative = high >> np.uint64(63) != 0
    if negative.any():
        low = np.where(negative, ~low + np.uint64(1), low)
        high = np.where(negative, ~high + (low == 0), high)
    if not high.any():
        return negative, [low]
    return negative, [high >> _HALF, high & _LOW, low >> _HALF, low & _LOW]


def _divided(words: list[Any], divisor: int) -> tuple[list[Any], Any]:
    """Divide by less than 32 bits; return the quotients' words and the remainders."""
    by = np.uint64(divisor)
    rest = np.uint64(0)
    quotients: list[Any] = []
    for word in words:
        value = (rest << _HALF) | word
        quotients.append(value // by)
        rest = value - quotients[-1] * by
    return quotients, rest
