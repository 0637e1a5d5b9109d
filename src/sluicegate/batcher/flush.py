"""`flush`: a fence after all items accepted so far, and the wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.batch import Reason
from .report import FlushReport

if TYPE_CHECKING:
    from .dispatch import Dispatcher
    from .fence import Fence


def _fence(dispatcher: Dispatcher[Any]) -> Fence:
    """Seal the open batch; return a fence after all items accepted so far."""
    with dispatcher.step():
        now = dispatcher.clock.now()
        dispatcher.window.close()
        dispatcher.gathering.gatherer.seal(Reason.MANUAL, now)
        fence = dispatcher.fences.add(dispatcher.numbers.last)
        dispatcher.check_fences()
        dispatcher.advance(now)
    return fence


async def flushed(dispatcher: Dispatcher[Any], seconds: float | None) -> FlushReport:
    """Write all items accepted so far; suspends and raises like `Batcher.flush`."""
    lifecycle = dispatcher.lifecycle
    lifecycle.check_here()
    if lifecycle.broken is not None:
        raise lifecycle.closed_error()
    if lifecycle.state != "open":
        return FlushReport(remaining=dispatcher.ledger.inside, outcomes={})
    clock, fence = lifecycle.clock, _fence(dispatcher)
    try:
        async with clock.timeout_at(None if seconds is None else clock.now() + seconds):
            await fence.passed
    except TimeoutError:
        pass  # the report has the remaining items
    finally:
        dispatcher.fences.remove(fence)
    if lifecycle.broken is not None:
        raise lifecycle.closed_error()
    holds = dispatcher.gathering.holds
    held = 0 if holds is None else holds.until(fence.number)
    remaining = dispatcher.before(fence.number) + held
    return FlushReport(remaining=remaining, outcomes=dict(fence.outcomes))
