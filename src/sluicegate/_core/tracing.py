"""The trace ids of a batch's items, for dead letters and observers."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ITEM_TRACES: ContextVar[Mapping[int, str]] = ContextVar("sluicegate item traces")
"""The trace ids of the current write's items, by index in the sealed batch."""


def trace_of(root: int) -> str | None:
    """Return the trace id of an item by its index in the sealed batch; `None` without tracing."""
    return ITEM_TRACES.get({}).get(root)
