"""batcher/4b.12: `FileSink` fulfils the contract of sinks.

White box: the names of rotated files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from tests.files.file_help import lines

from sluicegate.files import FileSink
from sluicegate.files.append import archives
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from pathlib import Path


class TestFileSink(SinkConformance[Any]):
    """Text."""

    name = "a.jsonl"
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / self.name

    def sink(self) -> FileSink:
        return FileSink(self.path, **self.options)

    def item(self, number: int) -> Any:
        return {"n": number}

    def bad_item(self, number: int) -> Any:
        return complex(number)

    async def stored(self) -> list[Any]:
        return [line for path in (*archives(self.path), self.path) for line in lines(path)]


class TestFileSinkInZstd(TestFileSink):
    """One frame per batch."""

    name = "a.jsonl.zst"
    options: ClassVar[dict[str, Any]] = {"compression": "zstd", "fsync": "never"}


class TestFileSinkInManyFiles(TestFileSink):
    """One file per batch."""

    options: ClassVar[dict[str, Any]] = {"rotate_bytes": 1, "fsync": "close"}
