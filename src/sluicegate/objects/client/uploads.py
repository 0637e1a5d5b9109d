"""Atomic uploads: an object becomes visible when all of its bytes have arrived."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._core.runtime.threads import in_thread, uncut
from .errors import missing_folder, translated, unreadable_folder
from .place import obstore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .place import StoreGiven

PART_BYTES = 8 << 20
"""Size of a part in bytes; larger objects are sent in parts, several concurrently."""
PARTS_AT_ONCE = 4
RELEASED_WITHIN = 0.02
"""Pause in seconds after the last upload. obstore's threads release Python objects shortly after an
upload has ended, and would abort a process that exits meanwhile (SIGABRT).
"""


class Uploads:
    """The open store of a sink, with at most `concurrency` uploads at once.

    A cancelled upload continues for up to `close_timeout` seconds, since a cut-off upload may leave
    parts in the store that are invisible but billed.
    """

    def __init__(self, given: StoreGiven, *, concurrency: int, close_timeout: float) -> None:
        self._given = given
        self._store = given.made()
        self._place = given.place
        self._folder = Path(given.folder) if given.is_folder else None
        self._target: Path | None = self._folder and self._folder.resolve()
        """The folder without symbolic links, which obstore resolves once."""
        self._free = asyncio.Semaphore(concurrency)
        self._close_timeout = close_timeout
        self._is_used = False

    async def close(self) -> None:
        """Suspend until obstore's threads have released the last upload."""
        if self._is_used:
            await in_thread(time.sleep, RELEASED_WITHIN)  # noqa: TID251  # threads know no virtual time

    async def put(
        self, make: Callable[[], tuple[str, Any]], content_type: str
    ) -> tuple[str, str | None]:
        """Store an object, in place of an earlier one; return its path and its entity tag.

        `make` returns the path and the content, as any object with a buffer. It runs in a thread
        when an upload is free, so at most `concurrency` contents are in memory. Suspends until the
        store has confirmed the object, or until it is on the local disk. Raises a `SinkError`, and
        whatever `make` raises.
        """
        self._is_used = True
        async with self._free:
            path, body = await in_thread(make)
            storing = self._put(path, body, content_type)
            return path, await uncut(storing, within=self._close_timeout)

    async def _put(self, path: str, body: Any, content_type: str) -> str | None:
        attributes = None if self._folder else {"Content-Type": content_type}
        try:
            target = self._followed()
            put: Coroutine[Any, Any, Any] = obstore().put_async(
                self._store,
                path,
                body,
                attributes=attributes,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
            stored = await put
            if target is not None:
                await in_thread(sync, target / path, target)
        except Exception as error:
            raise translated(error, self._place) from None
        tag: str | None = stored["e_tag"]
        return tag

    def _followed(self) -> Path | None:
        """Return the local folder, and open its store anew if its path leads to another one by now.

        Raises `RefusedError` if there is none, since obstore would create it, and the `SinkError`
        of a folder that cannot be examined.
        """
        folder = self._folder
        if folder is None:
            return None
        try:
            if not folder.is_dir():
                raise missing_folder(folder)
            target = folder.resolve()
        except OSError as error:
            raise unreadable_folder(error, self._place) from error
        if target != self._target:
            self._store, self._target = self._given.made(), target
        return target


def sync(path: Path, root: Path) -> None:
    """Sync a file and its parent folders to the disk. Blocks."""
    for each in (path, *path.parents):
        number = os.open(each, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
        if each == root:
            return
