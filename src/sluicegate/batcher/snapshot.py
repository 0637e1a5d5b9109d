"""A batcher's `stats()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .gathering.tenants import TenantGatherer
from .report import MOST_TENANTS, Stats

if TYPE_CHECKING:
    from .dispatch import Dispatcher


def stats_of(dispatcher: Dispatcher[Any]) -> Stats:
    """Return a snapshot. May be called in any thread."""
    lifecycle, ledger, gathering = dispatcher.lifecycle, dispatcher.ledger, dispatcher.gathering
    now = lifecycle.clock.now() if lifecycle.has_loop else 0.0
    held = gathering.gatherer.snapshot()
    tenants = gathering.gatherer if isinstance(gathering.gatherer, TenantGatherer) else None
    backing_off = len(dispatcher.flights.backing_off)
    return Stats(
        name=dispatcher.name,
        state=lifecycle.shown_state,
        tally=dispatcher.tally(),
        capacity_items=ledger.max_items,
        max_items=gathering.shape.max_items,
        max_delay=dispatcher.setup.limits.delay,
        workers=dispatcher.slots.limit,
        open_items=held.open_items,
        sealed_batches=held.sealed,
        in_flight_batches=len(dispatcher.flights) - backing_off,
        backing_off_batches=backing_off,
        waiting_producers=len(dispatcher.producers),
        waits=dispatcher.producers.waits,
        oldest_age=None if held.oldest_at is None else now - held.oldest_at,
        flushes={reason.value: n for reason, n in dispatcher.flights.by_reason.items()},
        held_keys=gathering.held_keys,
        held_items=gathering.held_items,
        tenants=0 if tenants is None else len(tenants),
        busiest_tenants=() if tenants is None else tuple(tenants.busiest(MOST_TENANTS, now)),
        throttled_seconds=max(0.0, lifecycle.throttled_until - now) if now else 0.0,
        destination=dispatcher.monitor.destination(now),
        last_error=dispatcher.monitor.last_error(now),
        retries=dispatcher.monitor.retries,
    )
