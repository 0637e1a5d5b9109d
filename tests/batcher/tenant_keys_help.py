"""One key in two tenants, and batchers with keys and tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyed_help import Item, Lane, key_of, tenant_of

from sluicegate import Batcher, Limits

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

LIMITS = Limits(max_items=10, max_delay=1.0, workers=4, max_pending_items=100)
NO_ROOM = Limits(max_items=5, max_delay=0.001, workers=1, max_pending_items=10)
A, B = Lane("acme", "k"), Lane("bolt", "k")
"""The same key in two tenants."""


def tenanted(sink: Any, clock: FakeClock, **options: Any) -> Batcher[Item]:
    given: dict[str, Any] = {"limits": LIMITS, **options}
    return Batcher(sink, key=key_of, tenant=tenant_of, clock=clock, **given)


def let_go(batcher: Any, lane: Lane) -> int:
    held: int = (batcher.unpark if batcher.setup.on_key_failure == "park" else batcher.resume)(
        lane.key, tenant=lane.tenant
    )
    return held


def tenants_inside(batcher: Batcher[Item]) -> int:
    return len(batcher._dispatcher.gathering.gatherer)  # type: ignore[arg-type]
