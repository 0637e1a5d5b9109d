"""batcher/4b.12: FileSink keeps what a sink has to keep."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.sinks import FileSink
from penstock.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class TestFileSink(SinkConformance[Any]):
    """Lines of JSON; what JSON cannot say is refused."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "items.jsonl"

    def sink(self) -> FileSink:
        return FileSink(self.path)

    def item(self, number: int) -> Any:
        return {"id": number}

    def bad_item(self, number: int) -> Any:
        return {"id": number, "what": object}

    async def stored(self) -> Sequence[Any]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []
