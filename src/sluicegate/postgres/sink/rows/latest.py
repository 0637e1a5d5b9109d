"""The rows of a batch that remain when each row replaces the earlier ones with the same key."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

if TYPE_CHECKING:
    from collections.abc import Sequence

pc: Any = compute  # its functions are created at import, so type checkers do not see them

_COUNTED = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "date",
        "timestamp without time zone",
        "timestamp with time zone",
    }
)
"""Types stored as whole numbers: the values have the same order in Arrow and in the table, and
those that differ in Arrow differ in the table.
"""


def latest(key: Sequence[Any], version: Any = None) -> Any:
    """The places of the rows that remain when each row replaces the earlier ones with the same key,
    in order.

    `None` if all remain. With `version` the first row with the highest version remains; it must not
    contain NULL, and have the same order in Arrow as in the table (see `are_whole`). A key that
    contains NULL is unique. Values that are equal on the server but not in Arrow both remain.
    """
    count = len(key[0])
    codes, alone = np.zeros(count, np.int64), np.zeros(count, bool)
    for column in key:
        if pa.types.is_floating(column.type):  # 0.0 and -0.0, NaN
            return None
        found = pc.dictionary_encode(column)
        alone |= pc.is_null(column).to_numpy(zero_copy_only=False)
        absent = len(found.dictionary)
        numbers = pc.fill_null(found.indices.cast(pa.int64()), absent).to_numpy(
            zero_copy_only=False
        )
        codes = np.unique(codes * (absent + 1) + numbers, return_inverse=True)[1]
    order = (
        np.arange(count)
        if version is None
        else count - 1 - _sorted(version.take(pa.array(np.arange(count)[::-1])))
    )
    last = np.empty(count, np.int64)
    last[codes[order]] = order  # of several assignments to one place the last one takes effect
    stays = alone
    stays[last[np.unique(codes)]] = True
    return None if stays.all() else np.flatnonzero(stays)


def _sorted(values: Any) -> Any:
    """The places of the values in ascending order; of equal ones, in their order."""
    return pc.array_sort_indices(values).to_numpy()


def are_whole(exact: str, kind: Any) -> bool:
    """Whether values of the Arrow type are stored in the column's declared type as they are, as
    whole numbers.
    """
    return exact in _COUNTED and bool(
        pa.types.is_integer(kind)
        or pa.types.is_date32(kind)
        or kind.equals(pa.timestamp("us", getattr(kind, "tz", None)))
    )
