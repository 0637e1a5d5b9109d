"""Read-only views of a spool: its numbers, and its items by page.

1. `answer` reads a running spool in its own thread, or a `DeadStore`, for the roles that it has:
   the writer's file is the one to which items are appended, the sender's are the others.
2. A `DeadStore` leaves the folder as it is, byte for byte, and takes no lock, so that an owner can
   start at any moment. A file without a log is opened as immutable. With a log, even a read-only
   connection may create the index of the log next to it, or delete the log when it closes: so the
   file and its log are copied to a temporary folder, and the copy is opened.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..._core.errors import ConfigError
from ..._core.logs import for_log
from .encoding import JSON, JSON_MARKED
from .parked import ParkedFile, ParkedItem
from .segment import PAGE, RESCUED, Segment, beside, connect, end_in
from .store import Store

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping

    from .segment import Item

ROLES = ("writer", "sender")
PAGE_BYTES = 1 << 20
WHY = ("parked_at", "error_type", "message", "attempts", "maybe_delivered")
START = 60
"""Maximum number of bytes of the start of a value."""


class DeadStore(Store):
    """The files of the roles that no process has, opened read-only."""

    def __init__(self, folder: Path, roles: Collection[str] = ROLES) -> None:
        writes, sends = (role in roles for role in ROLES)
        super().__init__(folder, writes=writes, sends=sends, durable=False, segment_bytes=0)
        self._roles = roles
        self._copies = TemporaryDirectory(prefix="sluicegate-spool-")
        self.parked = ParkedFile(folder, self._connect)
        self.unreadable: dict[str, str] = {}
        """The names of the files that cannot be read, and why."""

    def open(self) -> None:
        """Open the files that are not open yet."""
        for copy in self.folder.glob(f"*{RESCUED}"):
            self.unreadable[copy.name] = "a repair was interrupted; opening the spool completes it"
        known = {segment.path for segment in self.segments}
        for path in self._paths():
            role = "writer" if end_in(path) is None else "sender"
            if role in self._roles and path not in known:
                self._open(path, None)

    def adopt(self) -> bool:
        """Open the files that a writer has sealed since the last call."""
        self.open()
        return False

    def _open(self, path: Path, following: Path | None) -> None:
        del following
        try:
            if path.stat().st_size or any(each.exists() for each in beside(path)):
                self.segments.append(Segment(path, durable=False, opens=self._connect))
        except FileNotFoundError:
            pass  # its sender has removed it
        except (sqlite3.Error, ConfigError, TypeError) as error:
            self.unreadable[path.name] = for_log(error)

    def _connect(self, path: Path) -> sqlite3.Connection:
        logs = [each for each in beside(path) if each.exists() and each.stat().st_size]
        if logs or path.stat().st_size <= PAGE:  # a file without tables gets them in the copy
            copies = Path(self._copies.name)
            for each in (path, *logs):
                shutil.copyfile(each, copies / each.name)
            return connect(copies / path.name)
        uri = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"  # noqa: PTH100  # no links resolved
        return sqlite3.connect(uri, uri=True, isolation_level=None)

    def close(self) -> None:
        """Close the files."""
        for segment in self.segments:
            segment.close()
        self.parked.close()
        self._copies.cleanup()


def answer(store: Store, roles: Collection[str], request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request. Blocks; called in the thread of the store."""
    if "writer" not in roles:
        store.adopt()
    found: dict[str, Any] = {}
    if "page" in request:
        found = _page(store, roles, **request["page"])
    elif "numbers" in request:
        found = _numbers(store, roles)
    unreadable = store.unreadable if isinstance(store, DeadStore) else {}
    return {"roles": [*roles], "unreadable": unreadable, **found}


def _numbers(store: Store, roles: Collection[str]) -> dict[str, Any]:
    with closing(_unsettled(store, 0)) as items:
        oldest = next(items, None)
    return {
        "files": [
            {
                "file": segment.path.name,
                "first": segment.first,
                "end": segment.end,
                "unsettled": segment.unsettled,
                "bytes": segment.bytes,
                "interrupted_batches": len(segment.extents),
                "kept_by": _keeper(segment),
            }
            for segment in store.segments
        ],
        "oldest_at": None if oldest is None else oldest.at,
        "parked": store.parked.count() if "sender" in roles else 0,
    }


def _keeper(segment: Segment) -> int | None:
    """Return the offset of the one item that keeps a file alive."""
    if not segment.is_sealed or segment.unsettled != 1 or segment.end == segment.first + 1:
        return None
    return segment.settled.end_of(segment.first)


def _unsettled(store: Store, first: int) -> Generator[Item]:
    for segment in tuple(store.segments):
        at = segment.settled.end_of(max(first, segment.first))
        while at < segment.end:
            end = min(segment.end, segment.settled.next_after(at) or segment.end)
            yield from segment.items(at, end)
            at = segment.settled.end_of(end)


def _parked(store: Store, first: int) -> Generator[ParkedItem]:
    yield from store.parked.items(first)


def _page(
    store: Store, roles: Collection[str], *, first: int, most: int, parked: bool, show: str
) -> dict[str, Any]:
    """Return items from an offset on, and the offset of the next page."""
    found: list[dict[str, Any]] = []
    room = PAGE_BYTES
    if parked and "sender" not in roles:
        return {"items": found, "next": None}
    with closing(_parked(store, first) if parked else _unsettled(store, first)) as items:
        for each in items:
            item = each.item if isinstance(each, ParkedItem) else each
            if len(found) >= most or room <= 0:
                return {"items": found, "next": item.offset}
            why = dict(zip(WHY, each[1:], strict=True)) if each is not item else {}
            found.append({**_described(item, show), **why})
            room -= len(item.value) if show == "all" else START
    return {"items": found, "next": None}


def _described(item: Item, show: str) -> dict[str, Any]:
    made: dict[str, Any] = {"offset": item.offset, "at": item.at, "size": len(item.value)}
    if show == "start":
        made["start"] = item.value[:START].decode("utf-8", "backslashreplace")
    if not item.is_intact:
        made["damaged"] = True
    elif item.form == JSON_MARKED:
        made["marked"] = True
    if show == "all":
        if item.is_intact and item.form in {JSON, JSON_MARKED}:
            made["value"] = json.loads(item.value)
        else:
            made["base64"] = b64encode(item.value).decode()
    return made
