"""A batcher whose metrics Prometheus can scrape."""

import asyncio
from urllib.request import urlopen

from prometheus_client import start_http_server

from sluicegate import Batcher, Limits
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import PrometheusObserver


async def main() -> None:
    server, thread = start_http_server(0, addr="127.0.0.1")  # 0 is a free port; 9464 is usual
    limits = Limits(max_items=3, max_delay=60)
    async with Batcher(
        MemorySink[int](), name="audit", limits=limits, observers=[PrometheusObserver()]
    ) as batcher:
        await batcher.add_many(range(5))
    await asyncio.to_thread(scrape, server.server_port)
    server.shutdown()
    thread.join()


def scrape(port: int) -> None:
    """Read the metrics as Prometheus does."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        for line in page.read().decode().splitlines():
            if line.startswith("batcher_flush_total"):
                print(line)


if __name__ == "__main__":
    asyncio.run(main())
