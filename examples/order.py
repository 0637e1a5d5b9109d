"""The order in which items reach a log. The first write takes longer than the later ones."""

import asyncio
from collections.abc import Iterable

import sluicegate

CLOCK = sluicegate.batcher.LoopClock()


class Log:
    """A destination that appends. `stumble` is an item that it refuses at the first attempt."""

    def __init__(self, stumble: int | None = None) -> None:
        self.lines: list[int] = []
        self.writes = 0
        self.stumble = stumble

    async def write(self, batch: sluicegate.Batch[int]) -> sluicegate.WriteResult:
        self.writes += 1
        await CLOCK.sleep(0.25 if self.writes == 1 else 0.1)
        errors = {
            index: sluicegate.TransientError("busy")
            for index, item in enumerate(batch)
            if item == self.stumble
        }
        self.lines += [item for item in batch if item != self.stumble]
        self.stumble = None
        return sluicegate.WriteResult.failed(batch, errors)


def in_hundreds(sink: sluicegate.Sink[int], workers: int = 1) -> sluicegate.Batcher[int]:
    return sluicegate.Batcher(sink, limits=sluicegate.Limits(max_items=100, workers=workers))


async def produce(batcher: sluicegate.Batcher[int], items: Iterable[int]) -> None:
    for item in items:
        await batcher.add(item)
        await CLOCK.sleep(0)  # let the other producers run


async def one_producer(workers: int) -> list[int]:
    log = Log()
    async with in_hundreds(log, workers) as batcher:
        await produce(batcher, range(200))
    return log.lines


async def two_producers(workers: int) -> list[int]:
    log = Log()
    async with in_hundreds(log, workers) as batcher, asyncio.TaskGroup() as group:
        group.create_task(produce(batcher, range(100)))
        group.create_task(produce(batcher, range(1000, 1100)))
    return log.lines


async def two_batchers() -> list[int]:
    log = Log()
    async with in_hundreds(log) as ours, in_hundreds(log) as theirs:
        await produce(ours, range(200))
        await produce(theirs, range(1000, 1200))
    return log.lines


async def one_item_again() -> list[int]:
    log = Log(stumble=50)
    async with in_hundreds(sluicegate.stack(log, sluicegate.Retry())) as batcher:
        await produce(batcher, range(200))
    return log.lines


def spans(lines: Iterable[int]) -> str:
    """Format the lines as runs of successive numbers."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][-1] + 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


async def main() -> None:
    print("one producer, one worker:  ", spans(await one_producer(workers=1)))
    print("one producer, two workers: ", spans(await one_producer(workers=2)))
    for workers, word in ((1, "one worker: "), (2, "two workers:")):
        lines = await two_producers(workers)
        print(f"two producers, {word}", *lines[:6], "...")
        print("                 the first:", spans(line for line in lines if line < 1000))
        print("                the second:", spans(line for line in lines if line >= 1000))
    print("two batchers, a log:       ", spans(await two_batchers()))
    print("one item is tried again:   ", spans(await one_item_again()))


if __name__ == "__main__":
    asyncio.run(main())
