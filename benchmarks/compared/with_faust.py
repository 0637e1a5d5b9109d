"""Faust (faust-streaming) with an agent and its defaults."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import faust

from benchmarks.compared.work import BOOTSTRAP, CONCURRENCY, GROUP, SIZE, TOPIC, say, work

options: dict[str, Any] = {}
if "ACK_EXCEPTIONS" in os.environ:
    options["stream_ack_exceptions"] = os.environ["ACK_EXCEPTIONS"] == "1"
app = faust.App(
    GROUP,
    broker=f"kafka://{BOOTSTRAP}",
    value_serializer="raw",
    topic_partitions=1,
    topic_replication_factor=1,
    topic_disable_leader=True,
    broker_session_timeout=10.0,
    broker_rebalance_timeout=20.0,
    web_enabled=False,
    datadir=tempfile.mkdtemp(),
    **options,
)
topic = app.topic(TOPIC, key_type=bytes, value_type=bytes, value_serializer="raw")


if SIZE:

    @app.agent(topic)  # type: ignore[untyped-decorator]  # not installed here
    async def handle_many(stream: Any) -> None:
        async for batch in stream.take(SIZE, within=0.5):
            say("batch", len(batch))
            for value in batch:
                await work(None, value)

else:

    @app.agent(topic, concurrency=CONCURRENCY)  # type: ignore[untyped-decorator]  # not installed here
    async def handle(stream: Any) -> None:
        async for event in stream.events():
            await work(event.key, event.value)


if __name__ == "__main__":
    app.main()
