"""Faults that refuse every item of a file: a full disk, a missing permission, a read-only file
system. All are real ones.
"""

from __future__ import annotations

import os
import pwd
import resource
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.files.file_help import lines, room, written

from sluicegate import (
    Batcher,
    DeadLetter,
    ErrorClass,
    Limits,
    Outcome,
    RefusedError,
    Retry,
    UnavailableError,
    stack,
)
from sluicegate.files import FileSink
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluicegate.testing import FakeClock

PAGE = os.sysconf("SC_PAGESIZE")
NOBODY = 65534


def mount(*arguments: str) -> None:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 pages."""
    with mounted(tmp_path / "small", f"size={16 * PAGE}") as folder:
        yield folder


@pytest.fixture
def without_room(tmp_path: Path) -> Iterator[Path]:
    """A file system without space for another file."""
    with mounted(tmp_path / "full", f"size={PAGE},nr_inodes=1") as folder:
        yield folder


@contextmanager
def user(number: int) -> Iterator[str]:
    """Act as another user, because permissions do not restrict root; for the whole process, because
    its threads share the user.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may act as another user")
    os.seteuid(number)
    try:
        yield pwd.getpwuid(number).pw_name
    finally:
        os.seteuid(0)


@pytest.fixture
def open_to_all(tmp_path: Path) -> Path:
    """A folder that any user can reach."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o011)
    made = tmp_path / "open"
    made.mkdir(mode=0o777)
    made.chmod(0o777)
    return made


async def test_a_full_disk_is_refused_and_leaves_whole_lines_only(
    fake_clock: FakeClock, small: Path
) -> None:
    """batcher/4c: on a real file system, filled up to a few bytes within a write of many pages."""
    path = small / "a"
    async with FileSink(path) as sink:
        assert await written(sink, ["first"]) == {}
        before = path.read_bytes()
        noise = [os.urandom(PAGE).hex() for _ in range(20)]
        errors = await written(sink, noise)
        assert len(errors) == 20
        assert len({id(error) for error in errors.values()}) == 1, "the whole write was refused"
        error = errors[0]
        assert isinstance(error, RefusedError)
        assert error.repair == f"free space on the file system of {path}"
        assert str(path) in str(error)
        assert "No space left on device" in str(error)
        assert path.read_bytes() == before
        assert await written(sink, noise[:1]) == {}, "a smaller write has room"
    assert path.read_bytes().startswith(before)


def fill(path: Path) -> None:
    """Write until the file system is full."""
    with pytest.raises(OSError, match="No space left"), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * PAGE)


async def test_items_outlive_a_full_disk_without_attempts_or_letters(
    fake_clock: FakeClock, small: Path
) -> None:
    """decisions 0.3: producers wait for the operator, and every line is stored once."""
    filler = small / "filler"
    letters: MemorySink[object] = MemorySink()
    sink = stack(FileSink(small / "a"), Retry(attempts=2), DeadLetter(letters))
    async with Batcher(sink, clock=fake_clock, limits=Limits(max_items=4)) as batcher:
        fill(filler)
        receipts = [await batcher.submit(f"{number} {'y' * PAGE}") for number in range(4)]
        await fake_clock.advance(600)
        assert [receipt.outcome for receipt in receipts] == [None] * 4
        filler.unlink()
        await fake_clock.advance(60)
        assert [receipt.outcome for receipt in receipts] == [Outcome.DELIVERED] * 4
    assert [line.split()[0] for line in lines(small / "a")] == ["0", "1", "2", "3"]
    assert letters.items == []


async def test_a_disk_that_is_full_at_opening_is_refused_at_once(
    fake_clock: FakeClock, without_room: Path
) -> None:
    with pytest.raises(
        RefusedError, match="No space left on device; to repair: free space on the file system of"
    ):
        async with FileSink(without_room / "a"):
            pass


async def test_a_torn_line_stays_where_it_is_while_the_disk_is_full(
    fake_clock: FakeClock, small: Path
) -> None:
    """It cannot be moved aside; repeated openings leave no pieces of it behind."""
    path, aside = small / "a", small / "a.torn"
    torn = b"t" * (4 * PAGE)
    path.write_bytes(b'"whole"\n' + torn)
    (small / "filler").write_bytes(b"x" * (9 * PAGE))
    for _ in range(3):
        with pytest.raises(RefusedError, match="free space"):
            async with FileSink(path):
                pass
        assert aside.read_bytes() == b""
        assert path.read_bytes() == b'"whole"\n' + torn
    (small / "filler").unlink()
    async with FileSink(path):
        assert (path.read_bytes(), aside.read_bytes()) == (b'"whole"\n', torn)


async def test_a_read_only_file_system_is_refused(fake_clock: FakeClock, small: Path) -> None:
    path = small / "a"
    sink = FileSink(path)
    async with sink:
        assert await written(sink, ["x"]) == {}
    mount("-o", "remount,ro", str(small))
    with pytest.raises(
        RefusedError,
        match=f"Read-only file system; to repair: mount the file system of {path}.* for writing",
    ):
        async with sink:
            pass
    mount("-o", "remount,rw", str(small))
    async with sink:
        assert await written(sink, ["y"]) == {}


async def test_a_file_without_permission_is_refused_and_names_user_and_path(
    fake_clock: FakeClock, open_to_all: Path
) -> None:
    path = open_to_all / "a"
    path.write_bytes(b"")
    path.chmod(0o644)
    with user(NOBODY) as name:
        with pytest.raises(RefusedError) as caught:
            async with FileSink(path):
                pass
    assert (
        str(caught.value)
        == f"{path} cannot be written: Permission denied; to repair: make {path} writable by "
        f"user {name}"
    )


async def test_a_folder_without_permission_is_refused_and_named(
    fake_clock: FakeClock, open_to_all: Path
) -> None:
    os.chmod(open_to_all, 0o755)  # noqa: PTH101  # a path would be asked for in a thread
    with user(NOBODY) as name:
        with pytest.raises(
            RefusedError, match=f"to repair: make the folder {open_to_all} writable by user {name}$"
        ):
            async with FileSink(open_to_all / "a"):
                pass


async def test_a_permission_that_is_taken_away_is_refused_until_it_is_back(
    fake_clock: FakeClock, open_to_all: Path
) -> None:
    """For example by logrotate's `create` with the wrong owner."""
    path = open_to_all / "a"
    with user(NOBODY):
        async with FileSink(path) as sink:
            assert await written(sink, ["x"]) == {}
            os.seteuid(0)
            path.rename(open_to_all / "a.1")
            path.write_bytes(b"")
            path.chmod(0o600)
            os.seteuid(NOBODY)
            (error,) = (await written(sink, ["y"])).values()
            assert isinstance(error, RefusedError)
            assert f"make {path} writable" in error.repair
            os.seteuid(0)
            os.chown(path, NOBODY, -1)
            os.seteuid(NOBODY)
            assert await written(sink, ["y"]) == {}
    assert (lines(path), lines(open_to_all / "a.1")) == (["y"], ["x"])


async def test_a_file_that_must_not_grow_is_refused(fake_clock: FakeClock, tmp_path: Path) -> None:
    async with FileSink(tmp_path / "a") as sink:
        with room(100):
            error = (await written(sink, ["y" * 30] * 5))[0]
    assert isinstance(error, RefusedError)
    assert "ulimit -f" in error.repair


async def test_a_process_without_free_descriptors_is_unavailable(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """Descriptors become free again without an operator."""
    path = tmp_path / "a"
    async with FileSink(path) as sink:
        path.unlink()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
        try:
            (error,) = (await written(sink, ["x"])).values()
            assert sink.classify(error) is ErrorClass.UNAVAILABLE
            with pytest.raises(UnavailableError) as caught:
                async with FileSink(tmp_path / "b"):
                    pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert not isinstance(caught.value, RefusedError)
        assert await written(sink, ["x"]) == {}


async def test_a_file_that_was_replaced_by_another_kind_is_refused(
    fake_clock: FakeClock, tmp_path: Path
) -> None:
    """No item is at fault."""
    path = tmp_path / "a"
    async with FileSink(path) as sink:
        path.unlink()
        os.mkfifo(path)
        (error,) = (await written(sink, ["x"])).values()
        assert isinstance(error, RefusedError)
        assert f"move {path} away" in error.repair
        path.unlink()
        assert await written(sink, ["x"]) == {}
    assert lines(path) == ["x"]


@pytest.mark.parametrize("ending", [".lock", ".torn"])
async def test_no_file_beside_it_is_written_through_a_planted_link(
    fake_clock: FakeClock, tmp_path: Path, ending: str
) -> None:
    path, victim = tmp_path / "a", tmp_path / "victim"
    path.write_bytes(b"torn")
    (tmp_path / f"a{ending}").symlink_to(victim)
    with pytest.raises(RefusedError, match=f"in place of the symbolic link {path}{ending}"):
        async with FileSink(path):
            pass
    assert not victim.exists()
