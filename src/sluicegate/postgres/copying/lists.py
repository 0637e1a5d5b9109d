"""One-dimensional arrays: a header and the fields of the elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .layout import Layout
from .scatter import move, put
from .values import SlicedValues

if TYPE_CHECKING:
    from .values import FieldValues

_HEAD = np.dtype([("dimensions", ">i4"), ("has_null", ">i4"), ("oid", ">i4")])
_DIMENSION = np.dtype([("size", ">i4"), ("first", ">i4")])


def list_values(elements: FieldValues, oid: int, counts: Any, valid: Any) -> FieldValues:
    """Return arrays of `counts[i]` elements each; an empty array has no dimension."""
    fields = Layout([elements], int(counts.sum()), counted=False)
    bounds = _from_0(fields.ends)[_from_0(np.cumsum(counts))]
    bodies = np.diff(bounds)
    heads = np.empty(len(counts), _HEAD)
    heads["dimensions"] = counts > 0
    heads["has_null"] = elements.valid is not None
    heads["oid"] = oid
    filled = np.flatnonzero(counts)
    dimensions = np.ones(len(filled), _DIMENSION)
    dimensions["size"] = counts[filled]

    sizes = _HEAD.itemsize + (counts > 0) * _DIMENSION.itemsize + bodies
    ends = _from_0(np.cumsum(sizes))
    out = np.empty(ends[-1], np.uint8)
    places = ends[:-1] + _HEAD.itemsize
    put(out, ends[:-1], heads)
    put(out, places[filled], dimensions)
    data = fields.encoded(0, len(fields.ends))
    move(out, places + _DIMENSION.itemsize, data, bounds[:-1], bodies)
    return SlicedValues(out, ends, valid)


def _from_0(ends: Any) -> Any:
    return np.concatenate((np.zeros(1, np.int64), ends))
