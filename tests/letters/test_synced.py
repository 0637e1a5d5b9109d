"""Changes of letters and notes in a folder of objects survive a power failure.

White box: the folder itself, below letters and notes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate.objects.store import ObjectFolder, StoreGiven

if TYPE_CHECKING:
    import pytest

    from sluicegate.batcher import LoopClock


async def test_every_change_in_a_folder_is_on_the_disk(
    real_clock: LoopClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note is synced before a letter is sent. Content that replaces another one is synced
    first.
    """
    synced: list[str] = []
    real = os.fsync

    def fsync(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").readlink()
        synced.append(str(path.relative_to(tmp_path)))
        real(number)

    def latest() -> list[str]:
        found = synced.copy()
        synced.clear()
        return found

    monkeypatch.setattr(os, "fsync", fsync)
    given = StoreGiven.of(tmp_path.as_uri(), config=None, client_options=None, timeout=5.0)
    folder = ObjectFolder(given)
    assert await folder.create("a/x", b"earlier")
    assert latest() == ["a/x", "a", "."]
    assert not await folder.create("a/x", b"other")
    await folder.replace("a/x", b"later")
    assert latest() == ["a/x.new", "a", ".", "a/x", "a", "."]
    assert await folder.read("a/x") == b"later"
    assert [each.path for each in await folder.list_objects()] == ["a/x"]
    await folder.remove("a/x", "a/missing")
    assert latest() == ["a", "."]
