"""batcher/4b.12: `RedisSink` passes the conformance suite, for streams and for lists."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from tests.redis.redis_help import Store

    from sluicegate.redis import RedisSink


def positive(item: dict[str, Any]) -> dict[str, Any]:
    if item["n"] < 0:
        raise ValueError("a negative number")
    return item


def as_json(item: dict[str, Any]) -> str:
    return json.dumps(positive(item))


class TestStream(SinkConformance[dict[str, Any]]):
    """Entries whose ids Redis generates."""

    options: ClassVar[dict[str, Any]] = {"fields": positive}

    @pytest.fixture(autouse=True)
    def on(self, store: Store) -> None:
        self.store = store

    def sink(self) -> RedisSink:
        return self.store.sink(**self.options)

    def item(self, number: int) -> dict[str, Any]:
        return {"n": number}

    def bad_item(self, number: int) -> Any:
        return {"n": -number}

    async def stored(self) -> list[dict[str, Any]]:
        return [{"n": n} for n in await asyncio.to_thread(self.store.numbers)]


class TestStreamWithIds(TestStream):
    """Ids of the items, which may be repeated; a stream for each item, because ids must
    increase.
    """

    ordered = False
    options: ClassVar[dict[str, Any]] = {
        "stream": lambda item: f"events:{item['n']}",
        "fields": ["n"],
        "id": lambda item: positive(item)["n"],
        "on_conflict": "ignore",
    }

    async def stored(self) -> list[dict[str, Any]]:
        def read() -> list[int]:
            streams = self.store.client.keys("events:*")
            return [n for stream in streams for n in self.store.numbers(stream)]

        return [{"n": n} for n in await asyncio.to_thread(read)]


class TestStreamRefusing(TestStreamWithIds):
    """Ids that Redis itself refuses: the first valid one is `0-1`."""

    options: ClassVar[dict[str, Any]] = {
        **TestStreamWithIds.options,
        "id": lambda item: max(0, item["n"]),
        "on_conflict": "error",
    }


@pytest.mark.long
class TestTrimmedStream(TestStream):
    """With a limit that is not reached."""

    options: ClassVar[dict[str, Any]] = {"fields": positive, "max_age": 3600.0}
