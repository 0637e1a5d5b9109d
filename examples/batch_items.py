"""Orders with several lines each, written to a table in batches; one callback for each order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.consumer.jobs import BatchItems, ItemBatcher, MemoryState

if TYPE_CHECKING:
    from sluicegate.consumer.jobs import BatchItem, EventContext, Incomplete


@dataclass(frozen=True)
class Line:
    sku: str
    count: int


async def reserve(items: list[BatchItem]) -> None:
    """Reserve the lines of several orders in one call, and set the result of each."""
    lines = [f"{item.key} {item.value.sku} x{item.value.count}" for item in items]
    print("batch:", ", ".join(lines))
    for item in items:
        if item.value.count > 10:
            item.error = ValueError(f"only 10 of {item.value.sku} are left")
        else:
            item.user_data = f"{item.value.sku}-reserved"


async def reserved(context: EventContext, group: BatchItems) -> None:
    """Runs once for each order, in the order of its partition, after all of its lines."""
    errors = [item.error for item in group.items if item.error is not None]
    context.store.put(group.key, "refused" if errors else "reserved")
    told = "; ".join(map(str, errors)) or [item.user_data for item in group.items]
    print(f"order {group.key}: {told}")


reservations = ItemBatcher(reserve, max_batch_size=4, delay=0.01, name="reservations")


async def handle(context: EventContext) -> Incomplete:
    group = BatchItems(context, context.key, reserved).add(*context.value)
    return reservations.add(group)


async def main() -> None:
    log, state = MemoryLog(), MemoryState(keep=True)
    log.produce("orders", [Line("pen", 2), Line("ink", 1), Line("pad", 1)], key="o-1")
    log.produce("orders", [Line("pen", 1), Line("cap", 99)], key="o-2")
    log.produce("orders", [], key="o-1")  # nothing to reserve: still in the order of its key
    async with Consumer(MemorySource(log, ends=True), ordering="partition") as consumer:
        report = await consumer.run_events(handle, jobs=[reservations], state=state)
    for store in state.stores.values():
        print(dict(store.range()))
    print(report)


if __name__ == "__main__":
    asyncio.run(main())
