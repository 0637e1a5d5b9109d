"""Items one at a time in, batches out."""

import asyncio

import penstock


async def write(batch: penstock.Batch[str]) -> None:
    print(f"{len(batch)} items, because of {batch.reason.value}: {list(batch)}")


async def main() -> None:
    async with penstock.Batcher(
        write, limits=penstock.Limits(max_items=3, max_delay=0.5)
    ) as batcher:
        for name in ("ann", "bob", "cid", "dot"):
            await batcher.add(name)
    print(batcher.report)


if __name__ == "__main__":
    asyncio.run(main())
