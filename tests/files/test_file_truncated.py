"""Other programs truncate, rename and remove the file at every step of an append, also on a full
disk.

The functions of `os` that the sink calls are counted, and before call number n the file is really
truncated, renamed or removed.

White box: the calls of `os`.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.files.file_help import lines, room, written

from sluicegate import RefusedError, UnknownOutcomeError
from sluicegate.files import FileSink

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sluicegate.testing import FakeClock

CALLS = (
    "write",
    "lseek",
    "fstat",
    "ftruncate",
    "pread",
    "fsync",
    "open",
    "close",
    "rename",
    "stat",
)
BATCHES = (["a1", "a2"], ["b1", "b2", "b3"], ["c1"], ["d1", "d2"])


class Meddler:
    """Modifies a file before some of the calls."""

    def __init__(self, path: Path, how: str, at: Collection[int]) -> None:
        self.path = path
        self.at = at
        self.calls = 0
        self.copies: list[bytes] = []
        self.gone: list[bytes] = []
        self._how: Callable[[], None] = getattr(self, how)
        self._busy = False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            if not self._busy and threading.current_thread() is not threading.main_thread():
                self.calls += 1
                if self.calls in self.at:
                    self._busy = True
                    try:
                        self._how()
                    finally:
                        self._busy = False
            return function(*arguments, **options)

        return called

    def copytruncate(self) -> None:
        """Copy and truncate the file. As a separate process it ignores `room` and the lock."""
        if self.path.exists():
            self.copies.append(self.path.read_bytes())
            os.truncate(self.path, 0)

    def rename(self) -> None:
        if self.path.exists():
            self.path.rename(self.path.with_name(f"old-{len(list(self.path.parent.iterdir()))}"))

    def create(self) -> None:
        self.rename()
        self.path.touch()

    def remove(self) -> None:
        if self.path.exists():
            self.gone.append(self.path.read_bytes())
            self.path.unlink()


def items(content: bytes) -> list[str]:
    """The items in a file, every line of which must be readable."""
    assert b"\0" not in content
    found = content.split(b"\n")
    assert not found[-1], found
    return [json.loads(line).split()[0] for line in found[:-1]]


def items_of_copy(content: bytes) -> list[str]:
    """The items in a copy: like any file in use, it may contain an incomplete line."""
    found = content.split(b"\n")
    return [line[1:3].decode() for line in found[:-1] if line.startswith(b'"')]


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def run(
    path: Path,
    how: str,
    at: Collection[int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    full: bool,
) -> int:
    """Write some batches with a meddler; check that every delivered item is stored, no refused one
    is, and every line is readable.
    """
    meddler = Meddler(path, how, at)
    delivered: dict[str, int] = {}
    """The number of files removed so far."""
    refused: list[str] = []
    async with FileSink(path) as sink:
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, meddler.wrap(getattr(os, name)))
            for number, names in enumerate(BATCHES):
                with ExitStack() as stack:
                    if full and number == 1:
                        stack.enter_context(room(size(path) + 120))
                    errors = await written(
                        sink, [f"{name} {os.urandom(50).hex()}" for name in names]
                    )
                if not errors:
                    delivered.update(dict.fromkeys(names, len(meddler.gone)))
                elif isinstance(errors[0], UnknownOutcomeError):
                    assert how == "copytruncate"
                else:
                    assert isinstance(errors[0], RefusedError), errors
                    refused += names
    files = [each for each in path.parent.iterdir() if each.suffix not in {".lock", ".torn"}]
    there = [name for each in files for name in items(each.read_bytes())]
    copied = [name for content in meddler.copies for name in items_of_copy(content)]
    for name, earlier in delivered.items():
        assert (
            name in there
            or name in copied
            or any(name in items_of_copy(content) for content in meddler.gone[earlier:])
        ), name
    assert not {*refused} & {*there}
    assert how == "copytruncate" or len(there) == len({*there}), "nothing is there twice"
    assert full or not refused
    assert meddler.at or refused == (BATCHES[1] if full else [])
    return meddler.calls


WAYS = ("copytruncate", "rename", "create", "remove")
IN_THE_SUITE = {(how, number % 2 == 1) for number, how in enumerate(WAYS)}
"""Both disturbances of each kind once, with one of the three series at each step; the soak tests all
combinations.
"""
CIRCUMSTANCES = [
    pytest.param(*each, marks=() if each in IN_THE_SUITE else pytest.mark.soak)
    for each in product(WAYS, (False, True))
    if each != ("copytruncate", True)  # the start of a line may stay
]


@pytest.mark.parametrize(("how", "full"), CIRCUMSTANCES)
async def test_whatever_happens_at_any_step_every_line_can_be_read(
    fake_clock: FakeClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
    *,
    full: bool,
) -> None:
    caplog.set_level(logging.CRITICAL)
    (tmp_path / "undisturbed").mkdir()
    calls = await run(tmp_path / "undisturbed" / "a.jsonl", how, (), monkeypatch, full=full)
    step = 1
    while step <= calls:
        more = [{step, step + 1}, {step, step + 2}, {step, step + 1, step + 2, step + 3}]
        if (how, full) in IN_THE_SUITE:
            more = [more[step % 3]]
        for number, at in enumerate(({step}, *more)):
            folder = tmp_path / f"{step}-{number}"
            folder.mkdir()
            calls = await run(folder / "a.jsonl", how, at, monkeypatch, full=full)
        step += 1
    assert step > 20


async def test_a_truncated_file_goes_on_from_its_beginning_and_says_what_may_be_lost(
    fake_clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    async with FileSink(path) as sink:
        assert await written(sink, ["x"]) == {}
        os.truncate(path, 0)
        with caplog.at_level(logging.WARNING, "sluicegate.file"):
            assert await written(sink, ["y"]) == {}
            assert await written(sink, ["z"]) == {}
        (warning,) = caplog.messages
        assert "truncated by another program, from 4 to 0 bytes" in warning
    assert lines(path) == ["y", "z"]


async def test_a_full_disk_behind_a_truncation_leaves_no_nuls(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """A failed append must not be undone to the size before the truncation."""
    path = tmp_path / "a"
    async with FileSink(path) as sink:
        assert await written(sink, ["x" * 300]) == {}
        os.truncate(path, 0)
        with room(100):
            assert len(await written(sink, ["y" * 60] * 3)) == 3
        assert path.read_bytes() == b""
        assert await written(sink, ["z"]) == {}
    assert lines(path) == ["z"]


async def test_a_line_that_was_cut_by_another_program_is_moved_aside(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    async with FileSink(path) as sink:
        assert await written(sink, ["one", "two"]) == {}
        os.truncate(path, 8)
        assert await written(sink, ["three"]) == {}
    assert lines(path) == ["one", "three"]
    assert (tmp_path / "a.torn").read_bytes() == b'"t'


async def test_lines_that_may_be_lost_in_a_truncation_are_unknown(
    fake_clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The truncation happens between the append and its end: the lines may be in the copy, or
    lost.
    """
    path, really = tmp_path / "a", os.fsync

    def fsync(file: int) -> None:
        really(file)
        os.truncate(path, 0)

    async with FileSink(path) as sink:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            (error,) = (await written(sink, ["x"])).values()
        assert isinstance(error, UnknownOutcomeError)
        assert await written(sink, ["x"]) == {}
    assert lines(path) == ["x"]


async def test_lines_in_a_file_that_is_removed_while_they_are_written_go_to_a_new_one(
    fake_clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really = tmp_path / "a", os.fsync
    removed: list[bytes] = []

    def fsync(file: int) -> None:
        really(file)
        if not removed:
            removed.append(path.read_bytes())
            path.unlink()

    async with FileSink(path) as sink:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            assert await written(sink, ["x"]) == {}
    assert removed == [b'"x"\n']
    assert lines(path) == ["x"]
