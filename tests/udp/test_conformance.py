"""batcher/4b.12: `UdpSink` passes the conformance suite, with a receiver on this machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from sluicegate.testing.conformance import SinkConformance
from sluicegate.udp import UdpSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.udp.udp_help import Receiver


class TestStatsd(SinkConformance[dict[str, Any]]):
    """Counters."""

    options: ClassVar[dict[str, Any]] = {}
    number = re.compile(r"hits:(\d+)\|c")

    @pytest.fixture(autouse=True)
    def on(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def sink(self) -> UdpSink:
        return UdpSink(self.receiver.host, self.receiver.port, **self.options)

    def item(self, number: int) -> dict[str, Any]:
        return {"name": "hits", "value": number, "type": "c"}

    def bad_item(self, number: int) -> Any:
        return {"name": "h:its", "value": number, "type": "c"}

    async def stored(self) -> Sequence[dict[str, Any]]:
        found = map(self.number.fullmatch, self.receiver.lines())
        return [self.item(int(match[1])) for match in found if match is not None]


class TestFunction(TestStatsd):
    """Records made by a function; a record that is too long is refused."""

    options: ClassVar[dict[str, Any]] = {
        "encode": lambda item: f"{item['name']}:{item['value']}|c",
        "max_datagram": 20,
    }

    def bad_item(self, number: int) -> Any:
        return {"name": "x" * 20, "value": number, "type": "c"}
