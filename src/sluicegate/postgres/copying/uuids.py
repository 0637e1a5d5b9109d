"""Columns of UUIDs as text, converted to their 16 bytes."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pyarrow import compute

from .values import NoEncoder

if TYPE_CHECKING:
    from .values import SlicedValues

pc: Any = compute  # its functions are created at import, invisible to type checkers

_TEXT = np.dtype("V8, S1, V4, S1, V4, S1, V4, S1, V12")  # 8-4-4-4-12 digits
_STEP = 4_096
"""Number of rows that are decoded together."""


def uuid_bytes(values: Any, texts: SlicedValues) -> Any:
    """Return the 16 bytes of each UUID; any bytes for NULL. Raises `NoEncoder` for other text."""
    found = _of_usual_form(texts)
    return _of_any_form(values) if found is None else found


def _of_usual_form(texts: SlicedValues) -> Any:
    """Decode UUIDs of 32 digits and 4 hyphens; `None` if any has another form."""
    rows = len(texts.sizes)
    out = np.zeros(rows, "V16")
    for start in range(0, rows, _STEP):
        made = _decoded(texts.of_width(_TEXT.itemsize, start, start + _STEP))
        if made is None:
            return None
        out[start : start + _STEP][texts.sizes[start : start + _STEP] > 0] = made
    return out


def _decoded(given: Any) -> Any:
    if given is None:
        return None
    parts = given.view(_TEXT)
    if any((parts[f"f{place}"] != b"-").any() for place in (1, 3, 5, 7)):
        return None
    digits = np.empty(len(parts), "V8, V4, V4, V4, V12")
    for place in range(5):
        digits[f"f{place}"] = parts[f"f{2 * place}"]
    try:
        made = bytes.fromhex(digits.tobytes().decode("ascii"))
    except ValueError:
        return None
    return np.frombuffer(made, "V16") if len(made) == 16 * len(parts) else None  # it skips spaces


def _of_any_form(values: Any) -> Any:
    digits = pc.replace_substring(pc.fill_null(values, "0" * 32), "-", "")
    if not pc.all(pc.match_substring_regex(digits, "^[0-9a-fA-F]{32}$"), min_count=0).as_py():
        raise NoEncoder("uuid")
    return np.frombuffer(bytes.fromhex("".join(digits.to_pylist())), "V16")
