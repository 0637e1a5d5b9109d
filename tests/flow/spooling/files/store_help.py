"""White box: the files of a spool without a loop."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from sluicegate.flow.spooling.owner import turn
from sluicegate.flow.spooling.segment import Encoded
from sluicegate.flow.spooling.store import Store, Work

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def opened(folder: Path, **options: Any) -> Store:
    """Open the files of a process that writes and sends, with small segments."""
    defaults: dict[str, Any] = {
        "writes": True,
        "sends": True,
        "durable": False,
        "segment_bytes": 1 << 16,
    }
    store = Store(folder, **{**defaults, **options})
    with turn(folder):
        store.open()
    return store


def encoded(value: bytes) -> Encoded:
    return Encoded(0, 0, value, zlib.crc32(value))


def put(store: Store, *values: bytes) -> Work:
    """Store items; return the work, which may have failed."""
    work = Work(puts=[encoded(value) for value in values])
    store.apply([work])
    return work


def settle(store: Store, ranges: Iterable[tuple[int, int]]) -> None:
    work = Work(settles=[*ranges])
    store.apply([work])
    assert work.error is None, work.error


def unsettled(store: Store, most: int = 7, room: int = 1 << 30) -> dict[int, bytes]:
    """Read everything, a few items at a time; no item twice, in order."""
    found: list[tuple[int, bytes]] = []
    at, before = store.start, -1
    while at > before:
        before = at
        items, at = store.read(at, most, room)
        found += [(item.offset, item.value) for item in items]
    assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
    return dict(found)


def files(folder: Path, pattern: str = "*.db") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))
