"""The end of a batcher with a spool, its next start, and faults of its destination."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from spooling.spools import (
    SOON,
    Rejecting,
    SlowToOpen,
    in_order,
    killed,
    parked,
    spooled,
    stored,
)

from sluicegate import (
    Batcher,
    ClosedError,
    ConfigError,
    Limits,
    PermanentError,
    UnavailableError,
)
from sluicegate.consumer import Poison
from sluicegate.errors import BatcherBroken
from sluicegate.flow import Spool
from sluicegate.sinks import MemorySink
from sluicegate.testing import BlockingSink, ScriptedSink, fail, hang

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import FakeClock


def third(item: int) -> int:
    return item % 3


@pytest.mark.parametrize("again", ["the same batcher", "another batcher", "after a kill"])
async def test_a_shutdown_leaves_the_rest_to_the_next_start(
    tmp_path: Path, fake_clock: FakeClock, again: str
) -> None:
    folder, items = tmp_path / "spool", [*range(50)]
    sink = BlockingSink[int]()
    batcher = spooled(folder, sink, fake_clock, key=third, shutdown_deadline=5)
    async with batcher:
        await batcher.add_many(items)
        copy = killed(folder).rename(tmp_path / "copy")
    report = batcher.report
    assert report is not None
    assert (report.complete, report.unsent, report.tally.spooled) == (True, (), 50)
    assert fake_clock.now() <= 5
    assert stored(folder) == items
    sink.release()
    if again != "the same batcher":
        folder = copy if again == "after a kill" else folder
        batcher = spooled(folder, sink, fake_clock, key=third)
    async with batcher:
        await batcher.add(50)
    assert sorted(sink.applied) == [*items, 50]
    assert in_order(sink.applied, third)
    assert stored(folder) == []


async def test_a_shutdown_sends_what_it_can_and_waits_for_no_linger(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    sink = MemorySink[int]()
    linger = Limits(max_items=1000, max_delay=60)
    async with spooled(tmp_path / "spool", sink, fake_clock, limits=linger) as batcher:
        await batcher.add_many(range(2500))
    assert sink.items == [*range(2500)]
    assert fake_clock.now() < 1


@pytest.mark.parametrize("strategy", ["park", "block"])
async def test_a_shutdown_retries_and_parks_so_that_short_runs_get_on(
    tmp_path: Path, fake_clock: FakeClock, strategy: str
) -> None:
    folder, sink = tmp_path / "spool", Rejecting(lambda item: item == 0)
    poison = Poison("block") if strategy == "block" else None
    batcher = spooled(folder, sink, fake_clock, {"poison": poison}, key=lambda item: item % 2)
    async with batcher:
        await batcher.add_many(range(10))
    if strategy == "park":
        assert sorted(sink.applied) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert parked(folder) == [(b"0", "PermanentError", "rejected")]
        assert stored(folder) == []
    else:
        assert sink.applied == [1, 3, 5, 7, 9]
        assert stored(folder) == [0, 2, 4, 6, 8]
    assert fake_clock.now() < 5


async def test_the_sender_shows_what_is_under_way_and_what_has_ended(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    spool = Spool(tmp_path / "spool")
    sink = BlockingSink[int]()
    batcher = Batcher(sink, spool=spool, name="audit", limits=SOON, clock=fake_clock)
    with pytest.raises(ClosedError, match="open its Batcher"):
        _ = spool.sender
    async with batcher:
        await batcher.add_many([1, 2])
        await sink.wait_for_call()
        assert "audit-sending: 2 messages inside" in str(spool.sender.explain())
        assert spool.sender.stats().batcher.tally.accepted == 2
        sink.release()
    stats = spool.sender.stats()
    assert (stats.source.counts.acked, stats.batcher.tally.delivered) == (2, 2)


async def test_a_destination_that_is_down_at_the_start_prevents_no_add(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    sink = SlowToOpen(3, UnavailableError("down"))
    async with spooled(tmp_path / "spool", sink, fake_clock) as batcher:
        await batcher.add_many([1, 2])
        assert stored(tmp_path / "spool") == [1, 2]
    assert sink.items == [1, 2]


@pytest.mark.parametrize(
    ("options", "poison", "error"),
    [
        ({"on_failure": "crash"}, None, RuntimeError("bug")),
        ({}, Poison("exit"), PermanentError("refused")),
    ],
)
async def test_an_error_that_ends_the_sender_breaks_the_batcher_and_keeps_the_items(
    tmp_path: Path,
    fake_clock: FakeClock,
    options: dict[str, Any],
    poison: Poison | None,
    error: Exception,
) -> None:
    sink = ScriptedSink[int](default=fail(error))
    batcher = spooled(tmp_path / "spool", sink, fake_clock, {"poison": poison}, **options)
    async with batcher:
        await batcher.add(1)
        await fake_clock.advance(60)
        with pytest.raises(BatcherBroken, match=str(error)):
            await batcher.add(2)
    assert stored(tmp_path / "spool") == [1]


async def test_an_interrupted_batch_is_written_again_as_it_was_after_an_outage(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    """A destination that is down ends no batch, with or without a `Retry`."""
    down = UnavailableError("down")
    sink = ScriptedSink[int]([hang(), fail(down), fail(down), fail(down)])
    batcher = spooled(tmp_path / "spool", sink, fake_clock, shutdown_deadline=1)
    async with batcher:
        await batcher.add_many([1, 2, 3])
        await sink.wait_for_call()
    async with batcher:
        await batcher.add_many([4, 5])
        await fake_clock.advance(60)
    repeated = sink.calls[:5]
    assert {call.items for call in repeated} == {(1, 2, 3)}
    assert len({call.write_key for call in repeated}) == 1
    assert sink.applied == [1, 2, 3, 4, 5]


async def test_a_second_batcher_of_the_same_folder_does_not_open(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    sink = MemorySink[int]()
    async with spooled(tmp_path / "spool", sink, fake_clock) as first:
        with pytest.raises(ConfigError, match="is in use: this process"):
            await spooled(tmp_path / "spool", sink, fake_clock).__aenter__()
        await first.add(1)
    assert sink.items == [1]
