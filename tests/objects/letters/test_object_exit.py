"""A command that has read letters in an object store exits with its own code."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

AT_ONCE = 2
PROGRAM = """
import asyncio, sys
from sluicegate.objects.store import ObjectFolder
from sluicegate.objects.store import StoreGiven

given = StoreGiven.of(sys.argv[1], config=None, client_options=None, timeout=5.0)

async def main():
    folder = ObjectFolder(given)
    assert await folder.read("x") == b"content"
    assert [each.path for each in await folder.list_objects()] == ["x"]

asyncio.run(main())
"""


def test_a_process_that_exits_right_after_a_request_is_not_aborted(tmp_path: Path) -> None:
    """As it sometimes is after the asynchronous functions of obstore."""
    (tmp_path / "x").write_bytes(b"content")
    for _ in range(4):
        running = [
            subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path.as_uri()])
            for _ in range(AT_ONCE)
        ]
        assert [each.wait() for each in running] == [0] * AT_ONCE
