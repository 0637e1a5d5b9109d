"""Items of tenants, and a sink that refuses batches of several tenants."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sluicegate import Limits
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from sluicegate import Batch

Item = tuple[str, int]


def tenant_of(item: Item) -> str:
    return item[0]


def some(tenant: str, count: int, start: int = 0) -> list[Item]:
    return [(tenant, number) for number in range(start, start + count)]


def limits(**given: Any) -> Limits:
    most: dict[str, Any] = {
        "max_items": 5,
        "max_delay": 1.0,
        "workers": 2,
        "flush_timeout": 10_000.0,
    }
    return Limits(**{**most, **given})


class Watched:
    """Takes `seconds` per write, records the time and tenant of each item, and refuses a batch of
    several tenants.
    """

    def __init__(self, clock: FakeClock, seconds: float = 0.0) -> None:
        self.clock = clock
        self.seconds = seconds
        self.at: dict[Item, float] = {}
        self.tenants: list[object] = []
        self.order: dict[str, list[int]] = defaultdict(list)

    async def write(self, batch: Batch[Item]) -> None:
        assert {item[0] for item in batch} == {batch.tenant}, "a batch of several tenants"
        self.tenants.append(batch.tenant)
        await self.clock.sleep(self.seconds)
        for item in batch:
            self.at[item] = self.clock.now()
            self.order[item[0]].append(item[1])
