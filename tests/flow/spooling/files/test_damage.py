"""Damaged files: what is readable goes on, the file is kept, and an ERROR tells what is lost.

White box: pages of SQLite, and the names of files.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from itertools import count
from typing import TYPE_CHECKING

import pytest
from spooling.files.store_help import files, opened, put, settle, unsettled

from sluicegate import Batcher, ConfigError, flow
from sluicegate.flow.spooling.segment import PAGE, Extent
from sluicegate.flow.spooling.store import Work
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluicegate.testing import FakeClock

MARK = re.compile(rb"<(\d{6})>")


def value(offset: int) -> bytes:
    return b"<%06d>" % offset + bytes(300)


def filled(folder: Path) -> dict[int, bytes]:
    """Fill a sealed file and an open one, of about twenty pages; return their items."""
    store = opened(folder, segment_bytes=1 << 20)
    for first in (0, 200):
        put(store, *map(value, range(first, first + 200)))
        store.apply([Work(seals=not first)])
    settle(store, [(2, 5)])
    items = unsettled(store)
    store.close()
    return items


def truncated(data: bytes) -> bytes:
    return data[: len(data) // PAGE // 2 * PAGE]


def without_header(data: bytes) -> bytes:
    return b"\xff" * 100 + data[100:]


def without_first_page(data: bytes) -> bytes:
    return bytes(PAGE) + data[PAGE:]


def with_zeroed_page(data: bytes) -> bytes:
    at = [match.start() for match in MARK.finditer(data)][90] // PAGE * PAGE
    return data[:at] + bytes(PAGE) + data[at + PAGE :]


def without_root(data: bytes) -> bytes:
    """The only inner page of the items: leaves are whole, and cannot be found."""
    (at,) = [at for at in range(PAGE, len(data), PAGE) if data[at] == 5]
    return data[:at] + bytes(PAGE) + data[at + PAGE :]


def emptied(data: bytes) -> bytes:
    return b""


def garbage(data: bytes) -> bytes:
    return b"\xa5" * len(data)


def damage(path: Path, how: Callable[[bytes], bytes]) -> set[int]:
    """Damage a file; return the offsets of items that it does not have any more."""
    before = path.read_bytes()
    after = how(before)
    with path.open("r+b") as file:  # the same file, which may be open
        file.truncate(0)
        file.write(after)
    if how is without_root:
        after = b""
    lost = {*MARK.findall(before)} - {*MARK.findall(after)}
    return {int(each) for each in lost}


HOWS = [
    truncated,
    without_header,
    without_first_page,
    with_zeroed_page,
    without_root,
    emptied,
    garbage,
]


def check_rescued(folder: Path, items: dict[int, bytes], caplog: pytest.LogCaptureFixture) -> None:
    """The loss was told, the damaged file is kept, and what follows has new offsets."""
    (error,) = [each for each in caplog.records if each.levelname == "ERROR"]
    (kept,) = files(folder, "*.damaged")
    assert kept.partition(".db")[0] in error.getMessage()
    caplog.clear()
    for _ in range(2):
        store = opened(folder)
        assert unsettled(store) == items
        offset = put(store, b"more").first
        assert offset > max(items, default=0)
        items = {**items, offset: b"more"}
        store.close()
    assert not caplog.records, "a rescued file is damaged"


@pytest.mark.parametrize("which", [0, 1], ids=["sealed", "open"])
@pytest.mark.parametrize("how", HOWS)
def test_found_at_opening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: Callable[[bytes], bytes], which: int
) -> None:
    """By a process that reads it to its end."""
    items = filled(tmp_path)
    path = tmp_path / files(tmp_path)[which]
    lost = damage(path, how)
    store = opened(tmp_path)
    left = {offset: each for offset, each in items.items() if offset not in lost}
    assert unsettled(store) == left
    told = " ".join(caplog.messages)
    unsent = lost - {2, 3, 4}
    assert not unsent or f"{min(unsent)} to " in told or "perhaps later ones" in told
    next_offset = put(store, b"x").first
    assert next_offset > max(items)
    settle(store, [(next_offset, next_offset + 1)])
    store.close()
    check_rescued(tmp_path, left, caplog)


def test_found_at_writing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The write fails, and its repetition is stored in the new file."""
    items = filled(tmp_path)
    store = opened(tmp_path, segment_bytes=1 << 20)
    store.apply([Work(keeps=Extent("a", [store.end - 1] * 5000))])
    store.apply([Work(drops=Extent("a", [store.end - 1]))])
    store.close()
    path = tmp_path / files(tmp_path)[-1]
    data = path.read_bytes()
    free = (int.from_bytes(data[32:36], "big") - 1) * PAGE
    assert free > 0, "the file has no free page"
    store = opened(tmp_path, segment_bytes=1 << 20)
    damage(path, lambda data: data[:free] + b"\xff" * PAGE + data[free + PAGE :])
    assert put(store, bytes(5000)).error is not None
    assert unsettled(store) == items
    offset = put(store, bytes(5000)).first
    store.close()
    check_rescued(tmp_path, {**items, offset: bytes(5000)}, caplog)


def test_a_file_that_is_damaged_twice_is_kept_twice(tmp_path: Path) -> None:
    """No damaged file is overwritten by another one."""
    items = filled(tmp_path)
    for _ in range(2):
        damage(tmp_path / files(tmp_path)[0], without_header)
        store = opened(tmp_path)
        assert unsettled(store) == items
        store.close()
    assert len(files(tmp_path, "*.damaged")) == 2


def kill_before_renaming(number: int) -> None:
    renamings = count()

    def hook(event: str, _: object) -> None:
        if event == "os.rename" and next(renamings) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def test_a_rescue_that_is_killed_is_repeated(tmp_path: Path) -> None:
    """Before each renaming of a file."""
    kill_at = -1
    for kill_at in count():
        folder = tmp_path / str(kill_at)
        items = filled(folder)
        damage(folder / files(folder)[1], without_header)
        child = os.fork()
        if not child:
            kill_before_renaming(kill_at)
            opened(folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        store = opened(folder)
        assert unsettled(store) == items
        assert len(files(folder, "*.damaged")) == 1
        assert not files(folder, "*.rescued")
        store.close()
        if not status:
            break
    assert kill_at > 3


def test_another_format_is_refused(tmp_path: Path) -> None:
    """The error says what to do, and the file stays as it is."""
    filled(tmp_path)
    path = tmp_path / files(tmp_path)[0]
    damage(path, lambda data: data[:60] + (7).to_bytes(4, "big") + data[64:])
    with pytest.raises(ConfigError, match=r"format 7.*with the version that wrote it"):
        opened(tmp_path)
    assert not files(tmp_path, "*.damaged")


async def test_a_damaged_value_is_parked_and_the_others_are_sent(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """The checksum of an item finds what SQLite does not."""
    spool = flow.spool(tmp_path)
    async with Batcher(spool.sink()) as batcher:
        for at in range(5):
            await batcher.deliver(value(at))
    (name,) = files(tmp_path)
    damage(tmp_path / name, lambda data: data.replace(b"<000003>", b"<900003>"))
    sink = MemorySink[bytes]()
    async with Batcher(sink, spool=flow.spool(tmp_path)):
        pass
    assert sink.items == [value(at) for at in (0, 1, 2, 4)]
    store = opened(tmp_path)
    (parked,) = store.parked.items()
    assert parked.item.offset == 3
    store.close()
