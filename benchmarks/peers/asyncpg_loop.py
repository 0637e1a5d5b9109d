"""Batches of rows into PostgreSQL by hand: collect, convert, COPY."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import asyncpg


async def copy_rows(
    connection: asyncpg.Connection[Any],
    items: Iterable[Any],
    *,
    table: str,
    columns: Sequence[str],
    row: Callable[[Any], tuple[Any, ...]],
    size: int,
) -> None:
    """COPY `items` in batches of `size`, one after the other; no retry, no timeout, nothing
    counted.
    """
    batch: list[tuple[Any, ...]] = []
    for item in items:
        batch.append(row(item))
        if len(batch) == size:
            await connection.copy_records_to_table(table, records=batch, columns=columns)
            batch = []
    if batch:
        await connection.copy_records_to_table(table, records=batch, columns=columns)
