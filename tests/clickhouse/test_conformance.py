"""batcher/4b.12: `ClickHouseSink` passes the conformance suite, in both formats and on an old
server.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from tests.clickhouse.clickhouse_help import Words

from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.clickhouse.servers import EngineServer, OldServer

    from sluicegate.clickhouse import ClickHouseSink


class TestArrow(SinkConformance[tuple[int, str]]):
    """On a current engine."""

    options: ClassVar[dict[str, Any]] = {"format": "arrow"}

    @pytest.fixture(autouse=True)
    def on(self, engine: EngineServer) -> None:
        self.words = Words(engine, **self.options)

    def sink(self) -> ClickHouseSink:
        return self.words.sink()

    def item(self, number: int) -> tuple[int, str]:
        return number, "x"

    def bad_item(self, number: int) -> Any:
        return number, None

    def columns(self, items: Sequence[Any]) -> Any:
        pa = pytest.importorskip("pyarrow")
        ids, words = zip(*items, strict=True)
        return pa.record_batch({"id": ids, "word": pa.array(words, pa.string())})

    async def stored(self) -> list[tuple[int, str]]:
        rows = await asyncio.to_thread(self.words.rows)
        return [(int(number), word) for number, word in rows]


@pytest.mark.long
class TestJson(TestArrow):
    """On a current engine, as JSONEachRow."""

    options: ClassVar[dict[str, Any]] = {"format": "json"}


@pytest.mark.long
class TestAsynchronous(TestArrow):
    """Collected by the server (asynchronous inserts)."""

    options: ClassVar[dict[str, Any]] = {"async_insert": True}


class TestOldServer(TestArrow):
    """As JSONEachRow, without tokens."""

    options: ClassVar[dict[str, Any]] = {"format": "json", "deduplicate": False}

    @pytest.fixture(autouse=True)
    def on(self, old_server: OldServer) -> None:
        self.words = Words(old_server, **self.options)
