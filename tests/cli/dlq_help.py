"""Helpers for the tests of `sluicegate dlq`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sluicegate import RowBatch, send
from sluicegate.cli import main
from sluicegate.files import FileSink
from sluicegate.sinks import DeadLetterRecord

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

    from sluicegate import Sink

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def record(number: int, **changes: Any) -> DeadLetterRecord[Any]:
    """The letter of an item that failed `number` minutes after noon."""
    usual: dict[str, Any] = {
        "item": {"n": number},
        "error_type": "PermanentError",
        "error_class": "permanent",
        "message": f"no {number}",
        "attempts": 3,
        "first_at": NOON + timedelta(minutes=number - 1),
        "last_at": NOON + timedelta(minutes=number),
        "batcher": "audit",
        "batch_id": "b1",
        "key": f"key-{number:04}",
    }
    return DeadLetterRecord(**{**usual, **changes})


def keep(sink: Sink[Any], records: Iterable[DeadLetterRecord[Any]]) -> None:
    async def write() -> None:
        async with sink:  # type: ignore[attr-defined]  # every store's sink is opened
            assert await send(sink, RowBatch(records)) == {}

    asyncio.run(write())


def keep_in_file(path: Path, records: Iterable[DeadLetterRecord[Any]], **options: Any) -> str:
    keep(FileSink(path, **options), records)
    return str(path)


class Cli:
    """The command, run in this process, and its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> list[str]:
        """The lines of its output."""
        self._capsys.readouterr()
        found = main(["dlq", *arguments])
        said = self._capsys.readouterr()
        self.err = said.err
        assert found == code, said
        return said.out.splitlines()

    def letters(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self("list", *arguments, "--json")]

    def keys(self, *arguments: str) -> list[int]:
        """The numbers of the listed letters."""
        return [int(letter["key"].removeprefix("key-")) for letter in self.letters(*arguments)]


def module(folder: Path, name: str, text: str) -> None:
    """Write a module; a module of this name imported by another test is unloaded."""
    (folder / f"{name}.py").write_text(text)
    sys.modules.pop(name, None)


def process(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command in its own process."""
    command = [sys.executable, "-m", "sluicegate.cli", "dlq", *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
