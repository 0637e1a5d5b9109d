"""Items one at a time in, batches out."""

import asyncio

import sluicegate


async def write(batch: sluicegate.Batch[str]) -> None:
    print(f"{len(batch)} items, because of {batch.reason.value}: {list(batch)}")


async def main() -> None:
    async with sluicegate.Batcher(
        write, limits=sluicegate.Limits(max_items=3, max_delay=0.5)
    ) as batcher:
        for name in ("ann", "bob", "cid", "dot"):
            await batcher.add(name)
    print(batcher.report)


if __name__ == "__main__":
    asyncio.run(main())
