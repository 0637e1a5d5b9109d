"""FastStream; `POLICY` is the name of its `AckPolicy`, or `default`."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker
from faststream.kafka.annotations import KafkaMessage  # noqa: TC002  # read from the handler's signature

from benchmarks.compared.work import BOOTSTRAP, CONCURRENCY, GROUP, SIZE, TOPIC, work, work_on

POLICY = os.environ.get("POLICY", "default")
options: dict[str, Any] = {} if POLICY == "default" else {"ack_policy": AckPolicy[POLICY]}
if SIZE:
    options |= {"batch": True, "max_records": SIZE, "batch_timeout_ms": 500}
elif CONCURRENCY > 1:
    options["max_workers"] = CONCURRENCY
broker = KafkaBroker(BOOTSTRAP, graceful_timeout=5.0)
app = FastStream(broker)


@broker.subscriber(  # type: ignore[untyped-decorator]  # not installed here
    TOPIC,
    group_id=GROUP,
    auto_offset_reset="earliest",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=20_000,
    **options,
)
async def handle(message: KafkaMessage) -> None:
    raw = message.raw_message
    if isinstance(raw, tuple):
        await work_on([(each.key, each.value) for each in raw])
    else:
        await work(raw.key, raw.value)


if __name__ == "__main__":
    asyncio.run(app.run())
