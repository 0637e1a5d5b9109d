"""A pipe's worker is cut because of a revoked partition while it holds records of another one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from piping import P0, P1, Destination, key_of, records
from test_parking import DurableStore

from sluicegate import Batcher, Limits, Terminate, flow
from sluicegate.consumer import MemoryLog, MemorySource, Poison

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock


async def test_a_revoke_while_rows_wait_for_room_does_not_end_the_pipe(
    fake_clock: FakeClock,
) -> None:
    """A record behind these rows waits to be parked; the other partition is written to its end."""
    log = MemoryLog([*records("defghijk"), *records("aabbcc", partition=1)])
    store, sink = DurableStore(), Destination()

    async def hang(batch: Batch[Any]) -> None:
        await fake_clock.sleep(20.0)

    def decode(message: Any) -> Any:
        is_last = message.record.partition == 1 and message.offset == 5
        return Terminate("no") if is_last else message.record

    sink.before = hang
    limits = Limits(max_items=1, max_delay=0.0, workers=1, max_pending_items=2)
    batcher = Batcher(sink, key=key_of, limits=limits, clock=fake_clock)
    source = MemorySource(log, clock=fake_clock)
    options: dict[str, Any] = {"name": "billing", "poison": Poison(parked=store), "drain": 1.0}
    pipe = flow.pipe(source, batcher, decode, in_flight=100, **options)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(pipe.run())
        await fake_clock.advance(5.0)
        await source.revoke([P1])
        await fake_clock.advance(300.0)
        assert not run.done()
        assert log.start(P0).offset == 8
        assert await store.offsets() == []
        pipe.stop()
    assert {row.offset for row in sink.applied if row.partition == 0} == set(range(8))
    assert log.start(P1).offset < 6
