"""The dead letters of a pipe, of both kinds, are replayed with one command: `--pipe`."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
from typing import TYPE_CHECKING

import pytest
from tests.cli.dlq_help import Cli, module

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = (f"pipes_{number}" for number in itertools.count())

PIPE = """
import json, os
from sluicegate import *
from sluicegate import flow
from sluicegate.consumer import MemoryLog, MemorySource, Poison, Skip
from sluicegate.files import FileSink

def broken(what):
    return os.path.exists(f"broken-{what}")

def transform(message):
    rows = json.loads(message.value)
    if "strange" in rows and broken("transform"):
        raise PermanentError("strange")
    if "skipped" in rows:
        return Skip()
    return [{"n": message.offset, "row": row} for row in rows]

async def write(batch):
    if broken("destination"):
        raise UnavailableError("the destination is down")
    errors = {
        at: PermanentError("refused")
        for at, row in enumerate(batch) if row["row"] == "refused" and broken("sink")
    }
    with open("rows", "a") as file:
        for at, row in enumerate(batch):
            if at not in errors:
                print(json.dumps([batch.keys[at], row["row"]]), file=file)
    return WriteResult.failed(batch, errors)

def make(name="orders", batcher={}, log=MemoryLog()):
    letters = FileSink("dead")
    return flow.pipe(
        MemorySource(log, ends=True),
        Batcher(stack(write, DeadLetter(letters)), key=lambda row: row["n"], **batcher),
        transform,
        name=name,
        poison=Poison("skip", dead_letters=letters),
    )

def named():
    return make("billing", {"name": "bills"})

def other():
    return make("other")
"""


class Piped:
    """A pipe in a module of its own, and the command."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.name = next(_NAMES)
        module(folder, self.name, PIPE)
        self.module = importlib.import_module(self.name)
        self.cli = Cli(capsys)
        self._rows = 0

    def damage(self, *parts: str) -> None:
        for part in ("transform", "sink", "destination"):
            (self.folder / f"broken-{part}").unlink(missing_ok=True)
        for part in parts:
            (self.folder / f"broken-{part}").touch()

    def run(self, *values: str, make: str = "make") -> None:
        """Move records with these values; failed ones become dead letters."""
        log = self.module.MemoryLog()
        for number, value in enumerate(values):
            log.produce("orders", value, key=f"k{number % 3}", partition=0)
        name, batcher = {
            "make": ("orders", {}),
            "named": ("billing", {"name": "bills"}),
        }[make]
        asyncio.run(self.module.make(name, batcher, log).run())

    def replay(self, *arguments: str, make: str = "make", code: int = 0) -> None:
        self.cli("replay", "dead", "--pipe", f"{self.name}:{make}", *arguments, code=code)

    def rows(self) -> list[list[object]]:
        """The rows that were written since the last call."""
        path = self.folder / "rows"
        lines = path.read_text().splitlines() if path.exists() else []
        new, self._rows = lines[self._rows :], len(lines)
        return [json.loads(line) for line in new]


@pytest.fixture
def piped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Piped:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Piped(tmp_path, capsys)


@pytest.mark.parametrize("make", ["make", "named"])
def test_records_and_rows_are_replayed_with_one_command(piped: Piped, make: str) -> None:
    """A failed transform leaves the record, a refused row itself: the first passes the transform."""
    piped.damage("transform", "sink")
    piped.run('["a"]', '["strange", "b"]', '["c", "refused"]', '["strange", "d"]', make=make)
    assert piped.rows() == [[0, "a"], [2, "c"]]
    assert len(piped.cli.letters("dead")) == 3
    piped.damage()
    piped.replay(make=make)
    assert piped.cli.err == "replayed: 3 delivered\n"
    assert sorted(piped.rows()) == [
        [1, "b"],
        [1, "strange"],
        [2, "refused"],
        [3, "d"],
        [3, "strange"],
    ]
    assert {each["state"] for each in piped.cli.letters("dead", "--state", "all")} == {"replayed"}
    piped.replay(make=make)
    assert piped.rows() == []


def test_a_letter_that_fails_again_stays_with_its_new_error(piped: Piped) -> None:
    """The reason is that of the transform, or of a row that the sink refuses now."""
    piped.damage("transform", "sink")
    piped.run(
        "no json", '["strange", "refused"]', '["strange", "skipped"]', '["strange"]', '["refused"]'
    )
    assert len(piped.cli.letters("dead")) == 5
    piped.damage("sink")
    piped.replay(code=1)
    assert piped.cli.err.splitlines()[0] == "replayed: 1 delivered, 3 rejected, 1 held back"
    left = {each["batch_id"]: each for each in piped.cli.letters("dead")}
    assert left["orders/0@0"]["error_type"] == "JSONDecodeError"
    assert left["orders/0@1"]["message"] == "refused"
    assert left["orders/0@1"]["attempts"] == 2
    assert left["orders/0@3"]["attempts"] == 1, "it waits behind the first record of its key"
    assert len(left) == 4
    assert piped.rows() == [[1, "strange"]]


def test_an_unavailable_destination_ends_the_replay(piped: Piped) -> None:
    """Records behind the first one are neither sent nor counted as attempts."""
    piped.damage("transform")
    piped.run(*['["strange"]'] * 3)  # of three keys
    piped.damage("destination")
    piped.replay(code=1)
    assert piped.cli.err.splitlines()[0] == "replayed: 3 unsent"
    assert [each["attempts"] for each in piped.cli.letters("dead")] == [1, 1, 1]
    piped.damage()
    piped.replay()
    assert len(piped.rows()) == 3


def test_letters_of_another_pipe_are_refused(piped: Piped) -> None:
    piped.damage("transform")
    piped.run('["strange"]')
    piped.damage()
    piped.replay(make="other", code=1)
    assert "1 refused: it is from 'orders', and the pipe is 'other'" in piped.cli.err
    piped.replay("--dry-run")
    assert piped.cli.err.startswith(f"would send 1 dead letters to {piped.name}:make;")
    piped.cli("replay", "dead", "--pipe", f"{piped.name}:transform", code=2)
    assert "could not make" in piped.cli.err or "must be a pipe of rows" in piped.cli.err
    assert piped.rows() == []
