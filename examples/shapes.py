"""Three shapes of a batcher under the same load, 1,000 items a second in batches of 100, with a
fast and a slow destination.

It runs on the virtual clock, so the figures are exact and immediate.
"""

from collections.abc import Awaitable, Callable, Sized

import sluicegate
from sluicegate.testing import FakeClock

ITEMS = 3000
BETWEEN = 0.001
SIZE = 100


class Destination:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.items = 0

    async def write(self, batch: Sized) -> None:
        await sluicegate.batcher.LoopClock().sleep(self.seconds)
        self.items += len(batch)


class Synchronous:
    """A batcher by hand: the producer that fills the batch writes it."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.items: list[int] = []

    async def add(self, item: int) -> None:
        self.items.append(item)
        if len(self.items) == SIZE:
            await self.destination.write(self.items)
            self.items = []


async def produce(add: Callable[[int], Awaitable[None]], clock: FakeClock) -> float:
    """Add each item at its time, or as soon as possible afterwards; return the longest wait of an
    `add`, in seconds.
    """
    longest = 0.0
    began = clock.now()
    for item in range(ITEMS):
        await clock.sleep(max(0.0, began + item * BETWEEN - clock.now()))
        before = clock.now()
        await add(item)
        longest = max(longest, clock.now() - before)
    return longest


async def by_hand(clock: FakeClock, seconds: float) -> None:
    began = clock.now()
    longest = await produce(Synchronous(Destination(seconds)).add, clock)
    tell("synchronous", "", longest, clock.now() - began)


async def with_batcher(
    shape: str, clock: FakeClock, seconds: float, *, workers: int, ledger: int
) -> None:
    began = clock.now()
    limits = sluicegate.Limits(max_items=SIZE, workers=workers, max_pending_items=ledger)
    async with sluicegate.Batcher[int](Destination(seconds), limits=limits) as batcher:
        longest = await produce(batcher.add, clock)
    tell(shape, f"workers={workers}, max_pending_items={ledger}", longest, clock.now() - began)


def tell(shape: str, limits: str, longest: float, written: float) -> None:
    print(
        f"  {shape:<14}{limits:<34}longest add {longest * 1000:3.0f} ms, all written after "
        f"{written:.2f} s"
    )


async def main(clock: FakeClock) -> None:
    for seconds in (0.08, 0.15):
        print(f"a write takes {seconds * 1000:.0f} ms")
        await by_hand(clock, seconds)
        await with_batcher("double buffer", clock, seconds, workers=1, ledger=200)
        await with_batcher("double buffer", clock, seconds, workers=1, ledger=2000)
        await with_batcher("pipeline", clock, seconds, workers=2, ledger=300)


if __name__ == "__main__":
    with FakeClock() as virtual:
        virtual.run(main(virtual))
