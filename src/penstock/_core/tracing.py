"""Where the traces of a batch's items are known to whoever writes about them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ITEM_TRACES: ContextVar[Mapping[int, str]] = ContextVar("penstock item traces")
"""The trace id of each item of the batch that is being written, by its index in the sealed
batch.
"""


def trace_of(root: int) -> str | None:
    """The trace id of an item, by its index in the sealed batch; `None` where nobody traces."""
    return ITEM_TRACES.get({}).get(root)
