"""B-T40: `NatsSink` passes the conformance suite, on a real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from tests.nats.sink.nats_help import new_stream, read

from sluicegate.nats import NatsSink
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedNats


class TestNatsSink(SinkConformance[dict[str, Any]]):
    """With default arguments: JetStream, one subject."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def on(self, embedded_nats: EmbeddedNats) -> None:
        self.server = embedded_nats
        self.stream = asyncio.run(new_stream(embedded_nats))

    def sink(self) -> NatsSink:
        return NatsSink(f"{self.stream}.items", servers=self.server.url, **self.options)

    def item(self, number: int) -> dict[str, Any]:
        return {"n": number}

    def bad_item(self, number: int) -> Any:
        return {"n": float("nan")}

    async def stored(self) -> list[dict[str, Any]]:
        return [each.item for each in await read(self.server, self.stream)]


@pytest.mark.long
class TestNatsSinkOneAtATime(TestNatsSink):
    """The narrowest window."""

    options: ClassVar[dict[str, Any]] = {"max_in_flight": 1}


class TestNatsSinkSubjects(TestNatsSink):
    """The subject by a function, and items with headers, ids and limits of their own."""

    def sink(self) -> NatsSink:
        stream = self.stream
        return NatsSink(
            lambda item: f"{stream}.{str(item['n'])[-1]}",
            servers=[self.server.url],
            headers=lambda item: {"number": str(item["n"])},
            stream=stream,
        )
