"""Keys, tenants and adaptive control for a storm, from a seed.

White box: the queues of a batcher's tenants are counted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.storm import KEYS, Row

from sluicegate import Outcome
from sluicegate.batcher import Adaptive, Tenants
from sluicegate.batcher.gathering.tenants import TenantGatherer

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from sluicegate import Batch, Batcher


@dataclass(eq=False)
class Lanes:
    """The keys and tenants of a batcher, and its adherence to them. Items of one key are all good
    or all bad, whatever their tenant.
    """

    seed: int
    patient: bool
    has_keys: bool = field(init=False)
    cap: int | None = None
    policy: str = "skip"
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    broken: list[str] = field(default_factory=list[str])
    _last: dict[Hashable, int] = field(default_factory=dict["Hashable", int])

    def __post_init__(self) -> None:
        rng = random.Random(f"{self.seed} lanes")
        self.workers = rng.choice([1, 2, 4, 8, 16])
        self.has_keys = rng.random() < 0.7
        if self.has_keys:
            self.policy = "skip" if self.patient else rng.choice(["skip", "pause", "park", "fail"])
            self.options = {"key": self.key, "on_key_failure": self.policy}
        if self.policy == "park":
            self.options["max_parked_items"] = rng.randint(1, 3)
        if not self.has_keys or rng.random() < 0.5:
            self.cap = rng.choice([None, 5, 9])
            self.options |= {
                "tenant": self.tenant,
                "tenants": Tenants(weights={0: 3.0}, max_pending_items=self.cap),
            }
        if rng.random() < 0.6:
            self.options["adaptive"] = Adaptive(
                min_items=1, start_workers=rng.randint(1, self.workers)
            )

    @staticmethod
    def key(row: Row) -> int:
        return row[0] % KEYS

    @staticmethod
    def tenant(row: Row) -> int:
        return row[0] // KEYS % 3

    def line(self, item: int) -> Hashable:
        """The unit of ordering; `None` if there is none."""
        tenant = self.tenant((item,)) if "tenant" in self.options else None
        if self.has_keys:
            return tenant, self.key((item,))
        return (tenant,) if self.workers == 1 else None

    def lines(self, items: Iterable[int]) -> set[Hashable]:
        return {line for item in items if (line := self.line(item)) is not None}

    def settled(self, items: Iterable[int], outcome: Outcome, place: dict[int, int]) -> None:
        """Check that items of a key are settled in order."""
        if not self.has_keys or outcome in {Outcome.UNSENT, Outcome.UNKNOWN}:
            return
        for item in items:
            line = self.line(item)
            if place[item] <= self._last.get(line, -1):
                self.broken.append(f"item {item} is settled after one of its key that got in later")
            self._last[line] = place[item]

    def sealed(self, batch: Batch[Row]) -> None:
        """Check that a batch belongs to one tenant."""
        if "tenant" in self.options and {self.tenant(row) for row in batch} != {batch.tenant}:
            self.broken.append(f"{tuple(batch)} in a batch of tenant {batch.tenant}")

    def check(self, batcher: Batcher[Row]) -> None:
        """Check that no tenant exceeds its limit."""
        house = batcher._dispatcher.gathering.gatherer
        for share in house.queues() if isinstance(house, TenantGatherer) else ():
            if self.cap is not None and share.ledger.inside > self.cap:
                self.broken.append(f"tenant {share.tenant} has {share.ledger.inside} inside")

    def check_left(self, batcher: Batcher[Row]) -> None:
        """Check that only held keys remain."""
        dispatcher = batcher._dispatcher
        assert dispatcher.slots.used == 0
        tenants = dispatcher.gathering.gatherer
        if isinstance(tenants, TenantGatherer):
            assert all(one.held_keys and not one.ledger.inside for one in tenants.queues())
