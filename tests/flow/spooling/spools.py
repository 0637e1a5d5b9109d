"""Batchers with a spool, and the content of its files."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from sluicegate import Batcher, Limits, PermanentError, WriteResult
from sluicegate.flow import Spool
from sluicegate.testing import ScriptedSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from sluicegate import Batch
    from sluicegate.testing import FakeClock
    from sluicegate.testing.scripted import Scene

SOON = Limits(max_items=4, max_delay=0.01)


def spooled(
    folder: Path,
    sink: Any,
    clock: FakeClock,
    spool: Mapping[str, Any] | None = None,
    **options: Any,
) -> Batcher[Any]:
    """A batcher with a spool of these options."""
    made = Spool(folder, **(spool or {}))
    given: dict[str, Any] = {"limits": SOON, "clock": clock, "spool": made, **options}
    return Batcher(sink, **given)


def killed(folder: Path) -> Path:
    """The folder as it would be found if the process were killed now: a copy."""
    copy = folder.with_name(f"{folder.name}-killed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.sock"))
    return copy


def stored(folder: Path) -> list[Any]:
    """The items that are on disk and not settled, of a spool that may be open."""
    found: list[Any] = []
    for path in sorted(killed(folder).glob("*.db")):
        with closing(sqlite3.connect(path)) as db:
            values = db.execute(
                "SELECT value FROM items i WHERE NOT EXISTS (SELECT 1 FROM settled s"
                ' WHERE i.offset >= s.first AND i.offset < s."end") ORDER BY offset'
            )
            found += [json.loads(value) for (value,) in values]
    return found


def parked(folder: Path) -> list[tuple[bytes, str, str]]:
    """The value, the type of error and its message of each parked item."""
    path = folder / "parked.sqlite"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT value, error_type, message FROM parked ORDER BY offset")
        return found.fetchall()


class Rejecting(ScriptedSink[Any]):
    """Rejects some items and applies the others."""

    def __init__(self, rejects: Callable[[Any], object]) -> None:
        super().__init__(default=self._sift)
        self._rejects = rejects

    async def _sift(self, scene: Scene[Any]) -> WriteResult:
        bad = {at for at, item in enumerate(scene.batch) if self._rejects(item)}
        scene.apply(at for at in range(len(scene.batch)) if at not in bad)
        return WriteResult.failed(scene.batch, {at: PermanentError("rejected") for at in bad})


class SlowToOpen:
    """A destination that cannot be opened `failures` times."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures = failures
        self.error = error
        self.items: list[Any] = []

    async def __aenter__(self) -> Self:
        if self.failures:
            self.failures -= 1
            raise self.error
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def write(self, batch: Batch[Any]) -> None:
        self.items += batch


def in_order(items: Sequence[int], key: Callable[[int], object]) -> bool:
    """Whether the items of each key ascend."""
    by_key: dict[object, list[int]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return all(each == sorted(each) for each in by_key.values())
