"""Measure a destination at several batch sizes, then fill in the sizing worksheet.

Usage: python size_a_batcher.py DSN --rate N --peak N --budget SECONDS [--absorb SECONDS] [--item-bytes N]
"""

import argparse
import asyncio
import math
from dataclasses import dataclass

import asyncpg

import penstock
from penstock.sinks import PostgresSink

SIZES = (1, 10, 50, 100, 200, 500, 1000, 2000)
TABLE = "penstock_sizing"  # made, filled and dropped
CLOCK = penstock.LoopClock()


@dataclass(frozen=True)
class Measured:
    """One batch size: seconds that a write takes, items per second with one worker."""

    size: int
    write: float
    per_second: float

    def __str__(self) -> str:
        return f"{self.size:>6} items {self.write * 1000:>8.2f} ms a write {self.per_second:>10,.0f} items/s"


def knee(measured: list[Measured]) -> Measured:
    """The smallest batch that has nine tenths of the best throughput: beyond it batches grow, and hardly anything else does."""
    best = max(one.per_second for one in measured)
    return next(one for one in measured if one.per_second >= 0.9 * best)


def worksheet(at: Measured, *, peak: float, budget: float, absorb: float = 2.0) -> penstock.Limits:
    """Limits for at worst `peak` items a second that may wait `budget` seconds, with room for `absorb` seconds of them."""
    max_items = max(1, int(at.size * 0.8))
    workers = max(1, math.ceil(peak * at.write / max_items))
    return penstock.Limits(
        max_items=max_items,
        max_delay=budget,
        workers=workers,
        max_pending_items=math.ceil(peak * absorb) + max_items * (1 + workers),
    )


def told(limits: penstock.Limits, *, rate: float, item_bytes: int) -> list[str]:
    fills = limits.max_items / rate
    trigger = "size" if fills <= limits.delay else f"time, with about {max(1, round(rate * limits.delay))} items"
    return [
        f"max_items={limits.max_items}, max_delay={limits.delay}, workers={limits.workers}, max_pending_items={limits.ledger_items}",
        f"at the ordinary rate a batch is full after {fills:.3f} s, so most are sealed by {trigger}",
        f"a full ledger holds {limits.ledger_items * item_bytes / 2**20:.1f} MiB of items",
    ]


async def execute(dsn: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(sql)
    await connection.close()


async def measure(dsn: str, size: int) -> Measured:
    """Write for a while through a batcher with one worker."""
    await execute(dsn, f"DROP TABLE IF EXISTS {TABLE}; CREATE TABLE {TABLE} (id bigint PRIMARY KEY, action text NOT NULL)")
    sink = PostgresSink(dsn, table=TABLE, columns=("id", "action"), on_conflict="ignore")
    batches = max(5, min(200, 20_000 // size))
    async with penstock.Batcher[tuple[int, str]](sink, limits=penstock.Limits(max_items=size, max_delay=60.0)) as batcher:
        began = CLOCK.now()
        await batcher.add_from((number, "login") for number in range(batches * size))
        await batcher.flush()
        seconds = CLOCK.now() - began
    await execute(dsn, f"DROP TABLE {TABLE}")
    return Measured(size, seconds / batches, batches * size / seconds)


async def main(
    dsn: str, *, rate: float, peak: float, budget: float, absorb: float, item_bytes: int, sizes: tuple[int, ...] = SIZES
) -> None:
    measured: list[Measured] = []
    for size in sizes:
        measured.append(await measure(dsn, size))
        print(measured[-1])
    at = knee(measured)
    print(f"the knee is at {at.size} items")
    limits = worksheet(at, peak=peak, budget=budget, absorb=absorb)
    print(*told(limits, rate=rate, item_bytes=item_bytes), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("--rate", type=float, required=True, help="items per second on an ordinary day")
    parser.add_argument("--peak", type=float, required=True, help="items per second at the worst")
    parser.add_argument("--budget", type=float, required=True, help="seconds that an item may wait for its batch")
    parser.add_argument("--absorb", type=float, default=2.0, help="seconds of peak that the ledger takes while nothing is written")
    parser.add_argument("--item-bytes", type=int, default=1024, help="memory of one item")
    options = vars(parser.parse_args())
    asyncio.run(main(options.pop("dsn"), **options))
