"""Rows without a version: they would never replace another row, and any row would replace them. Pure."""

from __future__ import annotations

from operator import itemgetter
from types import NoneType
from typing import TYPE_CHECKING

from ...._core.errors import PermanentError
from .lazy import LazyRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plan.plan import TablePlan
    from .lazy import Row


def unversioned(rows: Sequence[Row], plan: TablePlan) -> dict[int, PermanentError]:
    """The errors, by place, of rows without a version."""
    if plan.version is None:
        return {}
    if isinstance(rows, LazyRows):
        places = rows.nulls(plan.version)
    else:
        kinds = [*map(type, map(itemgetter(plan.columns.index(plan.version)), rows))]
        if NoneType not in kinds:
            return {}
        places = [place for place, kind in enumerate(kinds) if kind is NoneType]
    text = f"a row without a version (column {plan.version!r}) cannot replace another"
    return {place: PermanentError(text) for place in places}
