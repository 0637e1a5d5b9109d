"""`sluicegate spool` on closed, killed and open spools. White box: the files are written directly."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
from contextlib import AsyncExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import Batcher, Limits, PermanentError
from sluicegate.cli import main
from sluicegate.cli.spool.view import viewed
from sluicegate.flow import Spool
from sluicegate.flow.spooling.encoding import Codec
from sluicegate.flow.spooling.parked import ParkedItem
from sluicegate.flow.spooling.segment import Extent
from sluicegate.flow.spooling.store import Store, Work

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from sluicegate.flow.spooling.running import RunningSpool
    from sluicegate.testing import FakeClock

ENCODED = Codec(None, None).encoded
PAD = "\x1b[2J é" * 500
NUMBER = 60
LEFT = [0, *range(50, NUMBER)]
"""The offsets that are not settled."""
PARKED = [3, 5]


class Cli:
    """The command, run in this process, and its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: object, code: int = 0) -> list[str]:
        self._capsys.readouterr()
        found = main(["spool", *map(str, arguments)])
        said = self._capsys.readouterr()
        self.err = said.err
        assert found == code, said
        return said.out.splitlines()

    def stat(self, folder: Path, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads("\n".join(self("stat", folder, "--json", code=code)))
        return found

    def offsets(self, folder: Path, *arguments: object) -> list[int]:
        return [json.loads(line)["offset"] for line in self("list", folder, "--json", *arguments)]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def put(store: Store, *items: object) -> None:
    work = Work(puts=[ENCODED(item, 1_000_000_000) for item in items])
    store.apply([work])
    assert work.error is None


def fill(store: Store) -> None:
    """Several files, of which item 0 keeps the first; one batch was interrupted."""
    store.folder.mkdir()
    store.open()
    items = [*({"n": n, "pad": PAD} for n in range(NUMBER - 1)), b"\xff\0"]
    for start in range(0, NUMBER, 6):
        put(store, *items[start : start + 6])
    parked = store.find(PARKED)
    store.parked.add([ParkedItem(each, 7, "KeyError", "bad\x1b", 2, False) for each in parked])
    store.apply([Work(settles=[(1, 50)], keeps=Extent("b", [0, 50]))])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spool whose process was killed: with logs, and a socket that nobody serves."""
    store = Store(tmp_path / "live", writes=True, sends=True, durable=False, segment_bytes=1 << 16)
    with closing(store):
        fill(store)
        shutil.copytree(tmp_path / "live", killed := tmp_path / "a?b%20c #d")
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(killed / "owner.sock"))
    assert len([*killed.glob("*-wal")]) >= 3
    return killed


def close(folder: Path) -> None:
    """Open and close the spool."""
    store = Store(folder, writes=True, sends=True, durable=False, segment_bytes=1 << 16)
    with closing(store):
        store.open()


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.name: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in folder.iterdir()
    }


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_spool_that_no_process_has_is_read_and_stays_as_it_is(
    cli: Cli, folder: Path, tmp_path: Path, is_killed: bool
) -> None:
    if not is_killed:
        close(folder)
    before = contents(folder)
    found = cli.stat(folder)
    assert (found["items"], found["parked"], found["interrupted_batches"]) == (11, 2, 1)
    assert found["oldest_seconds"] > 0
    assert found["owner"] == {"writer": None, "sender": None}
    files = found["files"]
    assert [files[0]["kept_by"], files[-1]["kept_by"]] == [0, None]
    assert [file["first"] for file in files[1:]] != [file["end"] for file in files[:-1]]
    assert sum(file["unsettled"] for file in files) == 11
    assert any("kept only by item 0" in line for line in cli("stat", folder))
    assert cli.offsets(folder) == LEFT
    assert cli.err == "11 unsettled items\n"
    assert cli.offsets(folder, "--parked") == PARKED
    lines = cli("export", folder, "-")
    assert [json.loads(line)["offset"] for line in lines] == LEFT
    assert json.loads(lines[0])["value"] == {"n": 0, "pad": PAD}
    assert json.loads(lines[-1])["base64"] == "/wA="
    cli("export", folder, tmp_path / "items.jsonl", "--parked")
    text = (tmp_path / "items.jsonl").read_text()
    assert [json.loads(line)["value"]["n"] for line in text.splitlines()] == PARKED
    cli("export", folder, tmp_path / "items.jsonl", code=2)
    assert (tmp_path / "items.jsonl").read_text() == text, "a file is not replaced"
    assert contents(folder) == before


def test_values_are_hidden_unless_asked_for_and_move_no_cursor(cli: Cli, folder: Path) -> None:
    assert not any("pad" in line for line in cli("list", folder))
    (line,) = cli("list", folder, "--values", "--from", 51, "--first", 1)
    assert line.split()[0] == "51"
    assert '{"n":51,"pad":"' in line
    (line,) = cli("list", folder, "--parked", "--from", 4)
    assert line.endswith("2 attempts  KeyError  bad\\x1b")


def test_long_work_prints_its_progress(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.cli.spool.commands.SAY_EVERY", 5)
    cli("export", folder, "-")
    assert cli.err.splitlines()[:2] == ["exported 5 items so far", "exported 10 items so far"]
    cli("check", folder)
    assert cli.err.splitlines()[0].endswith(" items so far")


def test_a_folder_without_a_spool_stays_as_it_is(cli: Cli, tmp_path: Path) -> None:
    for arguments in (["stat"], ["list"], ["check"], ["replay"]):
        cli(*arguments, tmp_path, code=2)
        cli(*arguments, tmp_path / "new", code=2)
    assert "no spool" in cli.err
    assert not [*tmp_path.iterdir()]


# -- with the locks --------------------------------------------------------------------------------


def damage_item(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE items SET value = x'00' WHERE offset = 0")


def remove_item(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM items WHERE offset = 0")


def tear(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(bytes(10 * 4096))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (damage_item, ": item 0: the value is not what was stored"),
        (remove_item, ": 1 unsettled items are missing"),
        (tear, ".db: "),
        (lambda path: path.write_bytes(b"nothing of SQLite" * 1000), "file is not a database"),
    ],
)
def test_a_check_names_what_is_wrong_and_repairs_nothing(
    cli: Cli, folder: Path, harm: Any, why: str
) -> None:
    assert cli("check", folder) == []
    assert cli.err.endswith(" items: nothing wrong\n")
    close(folder)
    first = min(folder.glob("*.db"))
    harm(first)
    before = contents(folder)
    if b"SQLite format" not in first.read_bytes():
        for arguments in (["stat", folder], ["list", folder], ["export", folder, "-"]):
            assert first.name in "".join([*cli(*arguments, code=1), cli.err])
    lines = cli("check", folder, code=1)
    assert why in lines[0]
    assert all(line.startswith(first.name) for line in lines)
    after = contents(folder)
    assert {name for name in after if after[name] != before.get(name)} == {
        "writer.lock",
        "sender.lock",
    }


def test_parked_items_return_to_the_end_in_order(cli: Cli, folder: Path) -> None:
    cli("replay", folder, "--offset", 5, "--offset", 4, code=2)
    assert cli.offsets(folder, "--parked") == PARKED
    cli("replay", folder, "--offset", 5)
    assert cli.offsets(folder, "--parked") == [3]
    cli("replay", folder)
    assert cli.offsets(folder, "--parked") == []
    assert cli.offsets(folder) == [*LEFT, 60, 61]
    values = [json.loads(line)["value"]["n"] for line in cli("export", folder, "-")[-2:]]
    assert values == [5, 3]


def test_an_interrupted_replay_repeats_items_and_loses_none(cli: Cli, folder: Path) -> None:
    """The removal fails: the items are in both places."""
    with closing(sqlite3.connect(folder / "parked.sqlite")) as db:
        db.execute("CREATE TRIGGER no BEFORE DELETE ON parked BEGIN SELECT RAISE(FAIL, 'no'); END")
    cli("replay", folder, code=1)
    assert cli.offsets(folder, "--parked") == PARKED
    with closing(sqlite3.connect(folder / "parked.sqlite")) as db:
        db.execute("DROP TRIGGER no")
    cli("replay", folder)
    values = [json.loads(line)["value"]["n"] for line in cli("export", folder, "-")[-4:]]
    assert values == [3, 5, 3, 5]


# -- open spools -----------------------------------------------------------------------------------


class Odd:
    """Refuses odd numbers."""

    async def write(self, batch: Sequence[int]) -> None:
        if any(n % 2 for n in batch):
            raise PermanentError("odd")


async def test_an_open_spool_answers_by_its_owner_while_its_loop_is_busy(
    fake_clock: FakeClock, cli: Cli, tmp_path: Path
) -> None:
    """The command blocks the loop here."""
    del fake_clock
    folder = tmp_path / "s"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(folder / "owner.sock"))
    spool = Spool(folder)
    async with Batcher(Odd(), spool=spool, limits=Limits(max_items=1)) as batcher:
        for n in range(4):
            await batcher.deliver(n)
        await asyncio.sleep(600)  # the socket does not hold virtual time
        assert cli.stat(folder)["owner"] == {"writer": os.getpid(), "sender": os.getpid()}
        assert cli.offsets(folder) == []
        assert cli.offsets(folder, "--parked") == [1, 3]
        assert stat.S_IMODE((folder / "owner.sock").stat().st_mode) == 0o600
        for refused in ("check", "replay"):
            cli(refused, folder, code=2)
            assert f"is in use: this process ({os.getpid()}) writes to it" in cli.err
        command = [sys.executable, "-m", "sluicegate.cli", "spool", "list", "--parked", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: ASYNC221  # the loop is busy
        assert len(done.stdout.splitlines()) == 2
    assert not [*folder.glob("*.sock")]
    assert cli.offsets(folder, "--parked") == [1, 3]


def opened(folder: Path, role: str) -> AbstractAsyncContextManager[RunningSpool]:
    spool = Spool(folder, segment_bytes=1 << 16, durability="os")
    spool.sink() if role == "writer" else spool.source()
    return spool._folder.opened()


@pytest.mark.parametrize("roles", ["writer", "sender", "writer sender"])
async def test_owners_of_one_role_and_closed_files_are_read_together(
    fake_clock: FakeClock, cli: Cli, folder: Path, roles: str
) -> None:
    del fake_clock
    found = cli.stat(folder)
    async with AsyncExitStack() as stack:
        for role in roles.split():
            await stack.enter_async_context(opened(folder, role))
            assert f"{role}.sock" in contents(folder)
        assert cli.offsets(folder) == LEFT
        assert cli.offsets(folder, "--parked") == PARKED
        open_now = cli.stat(folder)
        assert {**open_now, "owner": {}, "oldest_seconds": 0, "bytes": 0, "files": []} == {
            **found,
            "owner": {},
            "oldest_seconds": 0,
            "bytes": 0,
            "files": [],
        }
        assert [role for role, owner in open_now["owner"].items() if owner] == roles.split()
        cli("check", folder, code=2)


async def test_items_of_a_file_that_is_sealed_between_pages_are_in_one_place(
    fake_clock: FakeClock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake_clock
    monkeypatch.setattr("sluicegate.cli.spool.view._MOST", 2)
    async with opened(folder, "sender"), opened(folder, "writer") as writer:
        offsets: list[int] = []
        with viewed(folder) as view:
            for item in view.items(parked=False):
                offsets.append(item["offset"])
                if len(offsets) < 20:
                    await writer.put([ENCODED("x" * 30_000, 1)])
    assert sum(name.endswith(".db") for name in contents(folder)) >= 8
    assert offsets == [*LEFT, *range(NUMBER, NUMBER + 19)]


async def test_an_owner_without_room_for_a_socket_says_so(
    fake_clock: FakeClock, cli: Cli, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    del fake_clock
    folder = tmp_path / ("long" * 30)
    async with opened(folder, "writer") as running:
        await running.put([ENCODED(1, 1)])
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert "AF_UNIX path too long" in record.getMessage()
        cli("stat", folder, code=2)
        assert f"is open in process {os.getpid()}, which does not answer" in cli.err
        assert "107 bytes" in cli.err
    assert cli.offsets(folder) == [0]
