"""Purges and replays next to links planted by another user, and with files that others must not
read.

White box: the resolution of a path's links.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.dlq_help import Cli, keep_in_file, module, record

from sluicegate.files.letters import real

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65534


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    module(tmp_path, "planted_sink", "async def sink(batch): pass")
    return Cli(capsys)


def replayed(cli: Cli, folder: Path, name: str = "dead.jsonl", **options: Any) -> str:
    """A store of three letters, one of which was replayed."""
    store = keep_in_file(folder / name, [record(number) for number in range(3)], **options)
    cli("replay", store, "--to", "planted_sink:sink", "--letter", "key-0001")
    return store


def watched(monkeypatch: pytest.MonkeyPatch, look: Callable[[], object], seen: list[Any]) -> None:
    """Call a function at each system call of a purge that may change a file."""
    for name in ("open", "fchown", "fchmod", "fsync", "rename", "unlink"):
        really = getattr(os, name)

        def called(*arguments: Any, really: Callable[..., Any] = really, **options: Any) -> Any:
            answer = really(*arguments, **options)
            seen.append(look())
            return answer

        monkeypatch.setattr(os, name, called)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_purge_never_shows_letters_to_more_users(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """At no step is a file in the folder more readable than the letters; the new file has their
    mode at the end.
    """
    store = replayed(cli, tmp_path)
    beside = Path(f"{store}.replayed")
    for path in (Path(store), beside):
        path.chmod(mode)
    seen: list[set[int]] = []

    def look() -> set[int]:
        return {
            stat.S_IMODE(path.lstat().st_mode)
            for path in tmp_path.iterdir()
            if path.suffix in {".new", ".jsonl", ".replayed"}
        }

    with monkeypatch.context() as patch:
        watched(patch, look, seen)
        cli("purge", store)
    assert len(seen) > 10
    assert all(each & ~mode & 0o077 == 0 for modes in seen for each in modes)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (Path(store), beside)] == [mode, mode]
    assert cli.keys(store, "--state", "all") == [0, 2]
    assert not list(tmp_path.glob("*.new"))


def test_the_notes_of_a_replay_are_as_secret_as_the_letters(cli: Cli, tmp_path: Path) -> None:
    store = keep_in_file(tmp_path / "dead.jsonl", [record(1)])
    Path(store).chmod(0o600)
    cli("replay", store, "--to", "planted_sink:sink")
    assert stat.S_IMODE(Path(f"{store}.replayed").stat().st_mode) == 0o600


def test_a_purged_file_keeps_its_owner(cli: Cli, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    store = replayed(cli, tmp_path)
    os.chown(store, NOBODY, NOBODY)
    cli("purge", store)
    found = Path(store).stat()
    assert (found.st_uid, found.st_gid) == (NOBODY, NOBODY)


def test_a_file_of_another_user_is_not_taken_over_by_a_purge(cli: Cli, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may act as another user")
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o011)
    folder = tmp_path / "shared"
    folder.mkdir()
    store = replayed(cli, folder)
    folder.chmod(0o777)
    for path in folder.iterdir():
        path.chmod(0o666)
    before = Path(store).read_bytes()
    os.seteuid(NOBODY)
    try:
        cli("purge", store, code=2)
    finally:
        os.seteuid(0)
    assert "belongs to user root" in cli.err
    assert Path(store).read_bytes() == before
    assert not list(folder.glob("*.new"))


@pytest.mark.parametrize(
    "ending", [".new", ".lock", ".replayed", ".replayed.new", ".replayed.lock"]
)
def test_a_planted_link_is_not_written_through(cli: Cli, tmp_path: Path, ending: str) -> None:
    """At every name that was ever written next to the letters."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    store = replayed(cli, tmp_path)
    planted = Path(store + ending)
    planted.unlink(missing_ok=True)
    planted.symlink_to(victim)
    code = 0 if ending.endswith("new") else 2
    cli("purge", store, "--state", "all", "--yes", code=code)
    assert code == 0 or "symbolic link" in cli.err
    cli(
        "replay", store, "--to", "planted_sink:sink", code=2 if "replayed" in ending and code else 0
    )
    assert victim.read_text() == "precious"
    assert planted.is_symlink()
    missing = tmp_path / "missing"
    planted.unlink()
    planted.symlink_to(missing)
    cli("purge", store, "--state", "all", "--yes", code=code)
    assert not missing.exists()


def test_a_planted_link_at_the_temporary_name_is_an_error(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the random name was guessed."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    store = replayed(cli, tmp_path)
    monkeypatch.setattr(secrets, "token_hex", lambda number: "guessed")
    (tmp_path / ".sluicegate-guessed.new").symlink_to(victim)
    cli("purge", store, code=2)
    assert victim.read_text() == "precious"
    assert cli.keys(store, "--state", "all") == [0, 1, 2]
    assert (tmp_path / ".sluicegate-guessed.new").is_symlink(), (
        "what was not made here is not removed"
    )


def test_letters_behind_a_link_of_ones_own_are_purged_where_they_are(
    cli: Cli, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "dead.jsonl").symlink_to("data/dead.jsonl")
    store = replayed(cli, tmp_path)
    assert (data / "dead.jsonl").is_file()
    cli("purge", store)
    assert (tmp_path / "dead.jsonl").is_symlink()
    assert len((data / "dead.jsonl").read_bytes().splitlines()) == 2


def test_letters_behind_a_link_of_ones_own_are_not_purged_while_they_are_written_by_their_other_name(
    cli: Cli, tmp_path: Path
) -> None:
    import fcntl

    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "dead.jsonl").symlink_to("data/dead.jsonl")
    store = replayed(cli, tmp_path)
    with (data / "dead.jsonl.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cli("purge", store, code=2)
    assert "another process" in cli.err


def test_letters_behind_a_link_of_another_user_are_not_purged(cli: Cli, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a link to another user")
    real = tmp_path / "elsewhere.jsonl"
    (tmp_path / "dead.jsonl").symlink_to(real)
    store = replayed(cli, tmp_path)
    os.chown(tmp_path / "dead.jsonl", NOBODY, NOBODY, follow_symlinks=False)
    before = real.read_bytes()
    cli("purge", store, code=2)
    assert "symbolic link of user" in cli.err
    assert "name the file itself" in cli.err
    assert real.read_bytes() == before
    (tmp_path / "dead.jsonl.replayed").rename(tmp_path / "elsewhere.jsonl.replayed")
    cli("purge", str(real))
    assert len(real.read_bytes().splitlines()) == 2


def test_a_loop_of_links_is_told(cli: Cli, tmp_path: Path) -> None:
    replayed(cli, tmp_path)
    (tmp_path / "x").symlink_to("y")
    (tmp_path / "y").symlink_to("x")
    with pytest.raises(Exception, match="loop of symbolic links"):
        real(tmp_path / "x")


def test_an_unfinished_end_outlives_a_purge(cli: Cli, tmp_path: Path) -> None:
    """Opening for the purge moves it aside."""
    store = replayed(cli, tmp_path)
    end = b'{"key": "torn'
    with Path(store).open("ab") as file:
        file.write(end)
    cli("purge", store)
    assert Path(f"{store}.torn").read_bytes() == end
    assert cli.keys(store, "--state", "all") == [0, 2]


def test_a_purge_that_cannot_write_leaves_everything_as_it_was(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = replayed(cli, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fchmod", full)
        cli("purge", store, code=2)
    assert "No space left" in cli.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
