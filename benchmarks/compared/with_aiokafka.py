"""aiokafka with manual commits, as in its documentation: handle, then commit."""

from __future__ import annotations

import asyncio
import signal

from aiokafka import AIOKafkaConsumer

from benchmarks.compared.work import BOOTSTRAP, GROUP, SIZE, TOPIC, work, work_on


async def main() -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=BOOTSTRAP,
        group_id=GROUP,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
    )
    async with consumer:
        while not stopping.is_set():
            if SIZE:
                taken = await consumer.getmany(timeout_ms=500, max_records=SIZE)
                for records in taken.values():
                    await work_on([(record.key, record.value) for record in records])
                    await consumer.commit()
            else:
                taken = await consumer.getmany(timeout_ms=500, max_records=1)
                for records in taken.values():
                    await work(records[0].key, records[0].value)
                    await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main())
