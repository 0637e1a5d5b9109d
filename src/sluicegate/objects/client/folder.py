"""List, read, conditionally store and remove the objects below a URL.

1. In a local folder every change is synced to the disk. An object is replaced by renaming a synced
   one, so that a power cut leaves one of the two.
2. obstore's blocking functions are called in threads. After its asynchronous ones, its own threads
   may need the interpreter for a moment longer, and abort a process that exits immediately (SIGABRT,
   in place of the exit code of a command).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..._core.runtime.threads import in_thread
from .errors import is_of_bucket, translated
from .place import obstore
from .uploads import sync

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .place import StoreGiven

T = TypeVar("T")
_NEW = ".new"
"""The end of the name of an object that replaces another one."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object in a listing."""

    path: str
    size: int
    e_tag: str | None


class ObjectFolder:
    """An open store. Every method suspends, and raises a `SinkError`; a cancellation is raised
    when the request has ended.
    """

    def __init__(self, given: StoreGiven) -> None:
        self._store = given.made()
        self.place = given.place
        self._root = Path(given.folder).resolve() if given.is_folder else None

    async def listed(self, below: str | None = None) -> Sequence[Listed]:
        """Return all objects, or those in one folder, by path."""

        def work() -> list[Listed]:
            pages = obstore().list(self._store, prefix=below)
            return [
                Listed(each["path"], each["size"], each["e_tag"]) for page in pages for each in page
            ]

        return sorted(await self._call(work), key=lambda each: each.path)

    async def read(self, path: str, most: int | None = None) -> bytes | None:
        """Return the content of an object, or its first bytes; `None` if it does not exist."""

        def work() -> bytes | None:
            try:
                if most is not None:
                    part = obstore().get_range(self._store, path, start=0, length=most)
                    return bytes(part)
                found = obstore().get(self._store, path)
                return bytes(found.bytes())
            except FileNotFoundError as error:
                if is_of_bucket(error):
                    raise
                return None

        return await self._call(work)

    async def create(self, path: str, content: bytes) -> bool:
        """Store an object unless the name exists; return whether it was stored."""

        def work() -> bool:
            try:
                obstore().put(self._store, path, content, mode="create")
            except obstore().exceptions.AlreadyExistsError:
                return False
            self._sync(path)
            return True

        return await self._call(work)

    async def replace(self, path: str, content: bytes) -> None:
        """Store an object in place of the earlier one."""

        def work() -> None:
            if self._root is None:
                obstore().put(self._store, path, content)
                return
            obstore().put(self._store, path + _NEW, content)
            self._sync(path + _NEW)
            obstore().rename(self._store, path + _NEW, path)
            self._sync(path)

        await self._call(work)

    async def remove(self, *paths: str) -> None:
        """Remove objects; missing ones are ignored."""

        def work() -> None:
            for path in paths:
                try:
                    obstore().delete(self._store, path)
                except FileNotFoundError:
                    continue
                self._sync(path, is_removed=True)

        await self._call(work)

    async def tag(self, path: str) -> str | None:
        """Return the entity tag of an object; `None` if it does not exist."""

        def work() -> str | None:
            try:
                found = obstore().head(self._store, path)
            except FileNotFoundError:
                return None
            tag: str | None = found["e_tag"]
            return tag

        return await self._call(work)

    def _sync(self, path: str, *, is_removed: bool = False) -> None:
        """Sync a change to the local disk; in another store, do nothing."""
        if self._root is not None:
            changed = self._root / path
            sync(changed.parent if is_removed else changed, self._root)

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await in_thread(work)
        except Exception as error:
            raise translated(error, self.place) from None
