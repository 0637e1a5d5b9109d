"""A program whose destination never answers and cannot be cancelled: `python -m
benchmarks.peers.deaf_program DEADLINE PATIENCE`.

It prints the begin of its shutdown and the report; then it should end.
"""

from __future__ import annotations

import sys

import sluicegate

from .deaf import DeafSink

NEVER = 3600.0


async def main(deadline: float) -> None:
    """Add items, begin a write, and shut down."""
    async with sluicegate.Batcher(
        DeafSink(NEVER), limits=sluicegate.Limits(max_items=10), name="deaf"
    ) as batcher:
        await batcher.add_many(range(25))
        print("shutting down", flush=True)
        report = await batcher.shutdown(deadline)
        report.verify()
        print(report.tally.unknown, report.tally.unsent, flush=True)


if __name__ == "__main__":
    program = main(float(sys.argv[1]))
    sluicegate.run(program, accept=("unsent", "unknown"), patience=float(sys.argv[2]))
