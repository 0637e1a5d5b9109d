"""Batchers in every state that has an alert, for tests of the exporters."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import tenacity

from sluicegate import (
    Batcher,
    DeadLetter,
    Limits,
    PermanentError,
    RefusedError,
    Retry,
    TransientError,
    UnavailableError,
    stack,
)
from sluicegate.flow import Spool
from sluicegate.testing import BlockingSink, FakeSink, ScriptedSink, fail, hang, partial, slow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from sluicegate import Observer
    from sluicegate.testing import FakeClock

EVERY_ALERT = {
    "BatcherBatchesSmall": "sparse",
    "BatcherBatchesLarge": "small",
    "BatcherFlushSlow": "slow",
    "BatcherOnlySizeTrigger": "small",
    "BatcherOnlyTimeTrigger": "sparse",
    "BatcherQueueFilling": "full",
    "BatcherLosing": "losing",
    "BatcherDeadLetters": "letters",
    "BatcherKeysHeld": "held",
    "BatcherTenantFilling": "tenants",
    "BatcherDestinationUnavailable": "away",
    "BatcherOutage": "outage",
    "BatcherDestinationRefuses": "refused",
    "BatcherSpoolFilling": "spooling",
    "BatcherSpoolOld": "spooling",
    "BatcherSpoolParked": "spooling",
}
"""Every alert, and a batcher below for which it fires."""


@asynccontextmanager
async def every_state(
    clock: FakeClock, observers: Callable[[], list[Observer]]
) -> AsyncIterator[Mapping[str, Batcher[Any]]]:
    """Open and idle batchers, each in its own state; they are released at the end."""
    gates = [BlockingSink[Any](), BlockingSink[Any]()]
    retry = Retry(backoff=tenacity.wait_fixed(3600))
    two = Limits(max_items=2, workers=1)
    few = Limits(max_items=2, workers=1, max_pending_items=10)

    def one_bad() -> ScriptedSink[Any]:
        return ScriptedSink[Any]([partial({0: PermanentError("no")})])

    def batcher(name: str, sink: Any, limits: Limits, **more: Any) -> Batcher[Any]:
        return Batcher(sink, name=name, limits=limits, observers=observers(), **more)

    made = [
        batcher("small", ScriptedSink[Any]([]), two),
        batcher("sparse", ScriptedSink[Any]([]), Limits(max_items=100)),
        batcher("slow", ScriptedSink[Any]([slow(1.0), slow(1.0)]), two),
        batcher("full", gates[0], few, overflow="drop_newest"),
        batcher("losing", one_bad(), two),
        batcher("letters", stack(one_bad(), DeadLetter(FakeSink[Any]())), two),
        batcher(
            "held",
            one_bad(),
            two,
            key=str,
            on_key_failure="pause",
        ),
        batcher("tenants", gates[1], few, tenant=lambda _: "acme"),
        batcher("outage", stack(ScriptedSink[Any]([fail(TransientError("t"))]), retry), two),
        batcher("away", stack(ScriptedSink[Any]([fail(UnavailableError("no"))] * 40), retry), two),
        batcher("refused", stack(ScriptedSink[Any]([fail(RefusedError("no"))] * 40), retry), two),
    ]
    async with AsyncExitStack() as opened:
        spool = Spool(opened.enter_context(TemporaryDirectory()), max_items=1)
        one_hangs = ScriptedSink[Any]([fail(PermanentError("no")), hang()])
        one = Limits(max_items=1, flush_timeout=7200.0)
        spooling = batcher("spooling", one_hangs, one, spool=spool, clock=clock)
        await opened.enter_async_context(spooling)
        await spooling.add_many(range(2))
        await clock.sleep(3600.0)  # alone: in multiprocess mode each second writes all values
        for gate in gates:
            opened.callback(gate.release)
        for each in made:
            await opened.enter_async_context(each)
        made.append(spooling)
        by_name = {each.name: each for each in made}
        for name, items in SCRIPT.items():
            for item in items:
                by_name[name].try_add(item)
        await clock.sleep(10.0)
        yield by_name
        for gate in gates:
            gate.release()
        for each in made:
            await each.shutdown(deadline=1.0)


SCRIPT = {
    "small": range(4),
    "sparse": range(4),
    "letters": range(2),
    "slow": range(4),
    "full": range(12),
    "losing": range(2),
    "held": ["a", "a", "a"],
    "tenants": range(9),
    "outage": range(2),
    "away": range(2),
    "refused": range(2),
}
