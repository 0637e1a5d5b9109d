"""Rows that a table refuses wait in the state of their partition, and are retried when they are due."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.consumer.jobs import BatchItems, Interjector, ItemBatcher, MemoryState

if TYPE_CHECKING:
    from sluicegate.consumer.jobs import BatchItem, EventContext, Incomplete, StateStore

PAUSE = 5.0
PER_TICK = 2


@dataclass
class Row:
    value: str
    version: int
    parked_as: str | None = None
    """Its key in the state while it is parked."""


class Table:
    """A destination that refuses the rows of some keys for a while."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.refused: set[str] = set()
        self.started = asyncio.get_running_loop().time()

    def now(self) -> float:
        return asyncio.get_running_loop().time() - self.started

    async def write(self, items: list[BatchItem]) -> None:
        for item in items:
            if item.key in self.refused:
                item.error = ConnectionError("no answer")
            elif item.key not in self.rows or self.rows[item.key].version < item.value.version:
                self.rows[item.key] = item.value  # a retry does not undo a later version
        told = [f"{item.key} {'failed' if item.error else 'written'}" for item in items]
        print(f"{self.now():4.1f} s: {', '.join(told)}")


def due_key(due: float) -> str:
    return f"failed/{due:012.3f}"  # as text, sorted by time


class Writes:
    def __init__(self, table: Table) -> None:
        self.now = table.now
        self.batcher = ItemBatcher(table.write, max_batch_size=50, name="rows")

    async def handle(self, context: EventContext) -> Incomplete:
        row = Row(context.value, context.message.offset)
        return self.batcher.add(BatchItems(context, context.key, self.written).add(row))

    async def written(self, context: EventContext, group: BatchItems) -> None:
        for item in group.items:
            if item.value.parked_as is not None:
                context.store.delete(item.value.parked_as)
                item.value.parked_as = None
            if item.error is not None:
                self.park(context.store, item)

    def park(self, store: StateStore, item: BatchItem) -> None:
        """Park a row by the item's own key: in a retry, the key of the group is not the row's."""
        row = item.value
        row.parked_as = f"{due_key(self.now() + PAUSE)}/{item.key}/{row.version}"
        store.put(row.parked_as, [item.key, row.value, row.version])  # JSON can represent it

    async def retry(self, context: EventContext) -> Incomplete | None:
        """Retry due rows. A row stays parked until it is known to be written."""
        due = context.store.range("failed/", due_key(self.now()), limit=PER_TICK)
        group = BatchItems(context, "retry", self.written)
        for parked_as, (key, value, version) in due:
            group.add_with_key(key, Row(value, version, parked_as))
        return self.batcher.add(group) if group.items else None


async def run(log: MemoryLog, table: Table, state: MemoryState, seconds: float) -> None:
    """Run a consumer for a while."""
    writes = Writes(table)
    every = Interjector(writes.retry, every=1.0)
    async with Consumer(MemorySource(log), ordering="partition", budget=seconds) as consumer:
        await consumer.run_events(
            writes.handle, jobs=[writes.batcher], state=state, interjections=[every]
        )
    parked = [key for store in state.stores.values() for _, (key, *_) in store.range("failed/")]
    print(f"{table.now():4.1f} s: stopped, parked: {', '.join(parked) or 'nothing'}")


async def main() -> None:
    log, table, state = MemoryLog(), Table(), MemoryState(keep=True)
    for key in ("ann", "bob", "cid", "dot"):
        log.produce("users", f"{key}@example.com", key=key)
    table.refused = {"ann", "bob", "cid"}
    await run(log, table, state, 8.0)
    table.refused = {"cid"}
    await run(log, table, state, 8.0)  # restarted: parked rows are still there
    table.refused = set()
    await run(log, table, state, 8.0)
    print("rows:", *sorted(table.rows))


if __name__ == "__main__":
    asyncio.run(main())
