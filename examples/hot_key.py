"""One hot key in two ways, on virtual time: a handler that awaits `deliver`, and a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluicegate import Batcher, Capabilities, Consumer, Limits, flow
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from sluicegate import Batch, Message


class Table:
    """A destination that takes 10 ms for a write, and applies all of it or nothing."""

    capabilities = Capabilities(key_prefix_safe=True)

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.rows: list[Any] = []

    async def write(self, batch: Batch[Any]) -> None:
        await self._clock.sleep(0.01)
        self.rows += batch


def of_one_key(count: int) -> MemoryLog:
    log = MemoryLog()
    for number in range(count):
        log.produce("payments", number, key="ann")
    return log


def batcher(table: Table, clock: FakeClock) -> Batcher[Any]:
    limits = Limits(max_items=500, max_delay=0.2)
    return Batcher(table, key=lambda row: row[0], limits=limits, clock=clock)


async def by_handler(clock: FakeClock) -> None:
    table = Table(clock)
    consumer = Consumer(MemorySource(of_one_key(100), ends=True, clock=clock), clock=clock)
    async with batcher(table, clock) as rows:

        async def handle(message: Message) -> None:
            await rows.deliver((message.key, message.value))

        began = clock.now()
        await consumer.run(handle)
        seconds = clock.now() - began
    print(f"a handler that awaits deliver: {len(table.rows) / seconds:,.0f} records a second")


async def by_pipe(clock: FakeClock) -> None:
    table = Table(clock)
    source = MemorySource(of_one_key(100_000), ends=True, clock=clock)
    pipe = flow.pipe(source, batcher(table, clock), lambda message: (message.key, message.value))
    began = clock.now()
    await pipe.run()
    seconds = clock.now() - began
    is_ordered = [number for _, number in table.rows] == list(range(100_000))
    print(f"a pipe: {100_000 / seconds:,.0f} records a second, in order: {is_ordered}")


async def main(clock: FakeClock) -> None:
    await by_handler(clock)
    await by_pipe(clock)


if __name__ == "__main__":
    with FakeClock() as clock:
        clock.run(main(clock))
