"""The files that a path names, and the errors of unreadable ones.

White box: the set of files, without a source.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.files.source.files_help import Handled, handled

from sluicegate import ConfigError
from sluicegate.errors import MissingExtra
from sluicegate.files import FileSource, UnreadFiles
from sluicegate.files.source.finding import FileSet

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.batcher import LoopClock

NOBODY = 65534

TREE = (
    "b.ndjson",
    "a/x.csv",
    "a/y.ndjson.gz",
    "a/deep/er/z.ndjson",
    ".hidden.ndjson",
    "_SUCCESS",
    "_temporary/0/part.ndjson",
    ".git/x.ndjson",
    "c.ndjson.tmp",
    "d.ndjson.part",
    "e.tmp/x.ndjson",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path in TREE:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "root", "paths"),
    [
        ("", "", ["a/deep/er/z.ndjson", "a/x.csv", "a/y.ndjson.gz", "b.ndjson"]),
        ("a", "a", ["deep/er/z.ndjson", "x.csv", "y.ndjson.gz"]),
        ("*.ndjson", "", ["b.ndjson"]),
        ("**/*.ndjson", "", ["a/deep/er/z.ndjson", "b.ndjson"]),
        ("a/**/z*", "a", ["deep/er/z.ndjson"]),
        ("a/*", "a", ["x.csv", "y.ndjson.gz"]),
        ("?/[xy].*", "", ["a/x.csv", "a/y.ndjson.gz"]),
        ("b.ndjson", "", ["b.ndjson"]),
        (".hidden.ndjson", "", [".hidden.ndjson"]),
        ("*.parquet", "", []),
    ],
)
def test_paths_are_found_in_order(tree: Path, pattern: str, root: str, paths: list[str]) -> None:
    """In the order of their paths relative to the part before the first wildcard, without hidden
    and unfinished files.
    """
    files = FileSet(str(tree / pattern))
    assert files.root == tree / root
    assert files.find() == (paths, {})


def test_a_name_with_wildcards_is_a_name_if_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a[1].ndjson"
    path.touch()
    assert FileSet(str(path)).find().paths == ["a[1].ndjson"]


def test_a_link_to_a_directory_above_is_not_followed_for_ever(tree: Path) -> None:
    """Other links are followed; a dangling link is reported."""
    (tree / "a" / "up").symlink_to(tree)
    (tree / "link.ndjson").symlink_to(tree / "b.ndjson")
    (tree / "lost.ndjson").symlink_to(tree / "nothing")
    found = FileSet(str(tree)).find()
    assert "link.ndjson" in found.paths
    assert not any("up" in path for path in found.paths)
    assert found.refused == {"lost.ndjson": "a symbolic link to nothing"}


async def test_names_that_are_no_unicode_are_read(tmp_path: Path, real_clock: LoopClock) -> None:
    name = os.fsdecode(b"\xff\xfe.ndjson")
    (tmp_path / name).write_bytes(b"1\n")
    (message,) = await handled(FileSource(tmp_path))
    assert [*message.headers] == [("file", b"\xff\xfe.ndjson")]
    assert await handled(FileSource(tmp_path)) == []


async def test_nothing_to_read_is_an_error_of_the_opening(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """A wrong path must not look like a finished backfill."""
    (tmp_path / "_x.ndjson").touch()
    for path in (tmp_path, tmp_path / "*.ndjson"):
        with pytest.raises(ConfigError, match=r"no file matches .*: name a directory"):
            await handled(FileSource(path))
    with pytest.raises(ConfigError, match="there is no directory"):
        await handled(FileSource(tmp_path / "missing" / "*.ndjson"))
    with pytest.raises(ConfigError, match="No such file"):
        await handled(FileSource(tmp_path / "missing", state=tmp_path / ".state"))


async def test_positions_that_cannot_be_beside_the_files_are_to_be_elsewhere(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    (tmp_path / "a.ndjson").write_bytes(b"1\n")
    (tmp_path / ".sluicegate.sqlite").mkdir()
    with pytest.raises(ConfigError, match="pass state= to keep it elsewhere"):
        await handled(FileSource(tmp_path))
    assert len(await handled(FileSource(tmp_path, state=tmp_path / ".elsewhere"))) == 1


async def test_a_name_that_tells_no_format_is_an_error(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """No file is left out silently."""
    (tmp_path / "a.ndjson").write_bytes(b"1\n")
    (tmp_path / "readme.txt").write_bytes(b"2\n")
    with pytest.raises(ConfigError, match=r"readme\.txt: its name has no suffix of a known format"):
        await handled(FileSource(tmp_path))
    done = await handled(FileSource(tmp_path, format="ndjson"))
    assert done.values == [b"1", b"2"]


@pytest.mark.parametrize(
    ("name", "extra"),
    [("a.parquet", "parquet"), ("a.csv.zst", "files"), ("a.ndjson.zstd", "files")],
)
async def test_a_missing_package_is_named(
    tmp_path: Path, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch, name: str, extra: str
) -> None:
    """When a file needs it, or at once if the format is specified."""
    (tmp_path / name).touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=rf"sluicegate\[{extra}\]"):
        await handled(FileSource(tmp_path))
    if extra == "parquet":
        with pytest.raises(MissingExtra, match=r"sluicegate\[parquet\]"):
            FileSource(tmp_path, format="parquet")


def _writable(folder: Path) -> Path:
    """A state that every user can write."""
    folder.chmod(0o777)
    state = folder / "state"
    state.touch()
    state.chmod(0o666)
    return state


async def test_files_that_may_not_be_read_are_told_and_the_others_read(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """An unreadable directory is reported as well, and does not count as empty."""
    if os.geteuid() != 0:
        pytest.skip("only root may act as another user")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o011)
    tree = tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    for name in ("a.ndjson", "b.ndjson", "closed/c.ndjson"):
        (tree / name).write_bytes(b"1\n")
    for path in (tree, tree / "b.ndjson"):
        path.chmod(0o755)
    (tree / "a.ndjson").chmod(0o600)
    (tree / "closed").chmod(0o700)
    state = _writable(tmp_path)
    os.seteuid(NOBODY)
    done = Handled()
    try:
        with pytest.raises(UnreadFiles, match="Permission denied") as caught:
            await handled(FileSource(tree, state=state), done)
    finally:
        os.seteuid(0)
    assert caught.value.files == dict.fromkeys(("a.ndjson", "closed"), "Permission denied")
    assert done.places == [("b.ndjson", 0)]
    done = await handled(FileSource(tree, state=state))
    assert done.places == [("a.ndjson", 0), ("closed/c.ndjson", 0)]
