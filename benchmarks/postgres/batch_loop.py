"""Items in batches by hand: collect, convert, write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..destination import Row, Write


async def write_in_batches(
    write: Write, items: Iterable[Any], *, row: Callable[[Any], Row], size: int
) -> None:
    """Write `items` in batches of `size`, one after the other; without retries, timeouts or counts."""
    batch: list[Row] = []
    for item in items:
        batch.append(row(item))
        if len(batch) == size:
            await write(batch)
            batch = []
    if batch:
        await write(batch)
