"""Metrics to statsd by UDP, many in a datagram; here to a socket of this program."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from sluicegate import Batcher, Limits, Retry, stack
from sluicegate.udp import UdpSink

METRICS_BY_UDP = Limits(max_items=50, max_delay=0.1, max_pending_items=256 + 50 * 2)
METRICS: list[dict[str, Any]] = [
    {"name": "page.views", "value": 1, "type": "c", "tags": {"page": "home"}},
    {"name": "page.load", "value": 320, "type": "ms", "sample_rate": 0.1},
    {"name": "page:load", "value": 80, "type": "ms"},
    {"name": "fuel.level", "value": 0.5, "type": "g"},
    {"name": "users.seen", "value": "ann", "type": "s"},
]


def make_batcher(port: int) -> Batcher[dict[str, Any]]:
    sink = stack(UdpSink("127.0.0.1", port), Retry(give_up_after=10.0))
    return Batcher(sink, limits=METRICS_BY_UDP, overflow="drop_oldest", name="metrics")


async def main() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        async with make_batcher(receiver.getsockname()[1]) as batcher:
            for metric in METRICS:
                await batcher.add(metric)
        assert batcher.report is not None
        print(batcher.report.tally)
        print(receiver.recv(2000).decode())


if __name__ == "__main__":
    asyncio.run(main())
