"""batcher/4b.12: `FileSink` fulfils the contract of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from tests.files.file_help import lines

from sluicegate.files import FileSink
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from pathlib import Path


class TestFileSink(SinkConformance[Any]):
    """A line per item."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "a.jsonl"

    def sink(self) -> FileSink:
        return FileSink(self.path, **self.options)

    def item(self, number: int) -> Any:
        return {"n": number}

    def bad_item(self, number: int) -> Any:
        return complex(number)

    async def stored(self) -> list[Any]:
        return lines(self.path)


class TestFileSinkWithoutSync(TestFileSink):
    """Synced when it is closed."""

    options: ClassVar[dict[str, Any]] = {"fsync": "close"}
