"""Sources of files, for the page on backfills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.files import FileSource, UnreadFiles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sluicegate import Message


async def complete(folder: str, book: Callable[[Message], Awaitable[None]]) -> dict[str, str]:
    # --8<-- [start:unread]
    try:
        await Consumer(FileSource(folder, key="customer")).run(book)
    except UnreadFiles as unread:
        return unread.files
    return {}
    # --8<-- [end:unread]
