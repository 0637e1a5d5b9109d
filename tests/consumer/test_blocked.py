"""Blocked keys: the causes, the ways to continue, and a run that ends with blocked keys.

White box: the map beside a committed position is decoded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1, Poisoned, Recorder, finite, log_of, records, running

from sluicegate import ConfigError, Consumer, Nak
from sluicegate.consumer import MemoryLog, MemorySource, Poison, PoisonError, Position
from sluicegate.consumer.progress import offset_map
from sluicegate.errors import NoSuchKey
from sluicegate.testing import FakeSink

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import FakeClock


async def test_a_blocked_key_waits_and_others_go_on(fake_clock: FakeClock) -> None:
    """O-T5, consumer/C:C1, consumer/C:F2: the position stays before the blocked message."""
    log, handler = log_of(*"aabcab"), Poisoned(0)
    async with running(log, fake_clock, handler) as consumer:
        assert handler.offsets == [0, 2, 3, 5]
        assert [str(each) for each in consumer.blocked] == [
            "t/0@0 (key 'a', 0 failed tries: PoisonError: bad 0)"
        ]
        position = log.positions[P0]
        assert position.offset == 0
        assert offset_map.decode(*position) == [(2, 4), (5, 6)]


async def test_a_nak_of_five_keeps_the_position_at_five(fake_clock: FakeClock) -> None:
    """consumer/O8, O-T5: while 6 to 9 are settled, 5 is committed; once 5 is acknowledged, 10
    is.
    """
    log, waits = MemoryLog(records("abcdefghij")), [60.0]

    async def handle(message: Message) -> Nak | None:
        return Nak(waits.pop()) if message.offset == 5 and waits else None

    async with running(log, fake_clock, handle):
        assert log.positions[P0].offset == 5
        assert {position.offset for _, position in log.commits} == {5}
        await fake_clock.advance(60.0)
        assert log.positions[P0] == Position(10)


async def test_unblock_handles_the_message_again_before_those_behind_it(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:F2: its attempts start again at 1."""
    log, attempts = log_of(*"aaa"), []
    is_repaired = False

    async def handle(message: Message) -> Nak | None:
        attempts.append((message.offset, message.attempt))
        return None if is_repaired else Nak(0.1)

    async with running(log, fake_clock, handle) as consumer:
        assert attempts == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]
        assert consumer.blocked[0].attempts == 5
        is_repaired = True
        assert consumer.unblock("a") == 1
        await fake_clock.advance(2.0)
        assert consumer.blocked == ()
        assert attempts[5:] == [(0, 1), (1, 1), (2, 1)]
        assert log.positions[P0] == Position(3)


async def test_a_message_that_fails_after_unblock_is_blocked_again(fake_clock: FakeClock) -> None:
    handler = Poisoned(0)
    async with running(log_of(*"aa"), fake_clock, handler) as consumer:
        consumer.unblock("a")
        await fake_clock.advance(1.0)
        assert handler.offsets == [0, 0]
        assert len(consumer.blocked) == 1


async def test_skip_without_dead_letters_gives_the_message_up(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    log, handler = log_of(*"aa"), Poisoned(0)
    async with running(log, fake_clock, handler) as consumer:
        assert consumer.unblock("a", action="skip") == 1
        await fake_clock.advance(2.0)
        assert handler.offsets == [0, 1]
        assert log.positions[P0] == Position(2)
    assert "t/0@0 is given up without a dead letter (PoisonError: bad 0)" in caplog.text


async def test_unblock_takes_a_partition_for_a_key_that_is_blocked_in_two(
    fake_clock: FakeClock,
) -> None:
    log = MemoryLog([*records("ab"), *records("a", partition=1)])
    handler = Poisoned(0)
    async with running(log, fake_clock, handler) as consumer:
        assert {each.partition for each in consumer.blocked} == {P0, P1}
        assert consumer.unblock("a", partition=P1, action="skip") == 1
        assert [each.partition for each in consumer.blocked] == [P0]
        assert consumer.unblock("a", action="skip") == 1


async def test_an_unblocked_key_that_is_not_blocked_is_an_error_that_names_those_that_are(
    fake_clock: FakeClock,
) -> None:
    async with running(log_of(1, 2), fake_clock, Poisoned(0)) as consumer:
        with pytest.raises(NoSuchKey, match=r"^key True is not blocked; blocked: 1 of t/0$"):
            consumer.unblock(True)  # equals 1, but is another key
        with pytest.raises(NoSuchKey, match=r"key 1 of t/1 is not blocked"):
            consumer.unblock(1, partition=P1)
        with pytest.raises(NoSuchKey, match=r"key \[\] is not blocked"):
            consumer.unblock([])
        with pytest.raises(ConfigError, match="action='forget': must be one of 'retry', 'skip'"):
            consumer.unblock(1, action="forget")  # type: ignore[arg-type]
        assert consumer.unblock(1) == 1


async def test_many_blocked_keys_are_counted_in_the_error(fake_clock: FakeClock) -> None:
    async with running(log_of(*range(9)), fake_clock, Poisoned(*range(9))) as consumer:
        with pytest.raises(NoSuchKey, match=r"blocked: 0 of t/0, .*, 4 of t/0 and 4 more$"):
            consumer.unblock("x")


async def test_a_run_with_only_blocked_messages_left_ends_and_reports_them(
    fake_clock: FakeClock,
) -> None:
    """When the source ends, the run does not wait for an operator."""
    log, handler = log_of(*"aabc"), Poisoned(0)
    report = await finite(log, fake_clock, drain=5.0).run(handler)
    assert fake_clock.now() < 1.0
    assert report.complete
    assert [(each.offset, each.key) for each in report.blocked] == [(0, "a")]
    assert isinstance(report.blocked[0].error, PoisonError)
    assert "1 blocked and delivered again: t/0@0 (key 'a'" in str(report)
    assert log.positions[P0].offset == 0
    assert (await finite(log, fake_clock).run(again := Recorder())).complete
    assert again.offsets == [0, 1]


def test_dead_letters_are_checked_at_construction(fake_clock: FakeClock) -> None:
    with pytest.raises(ConfigError, match=r"needs Poison\(dead_letters="):
        finite(log_of(), fake_clock, poison="block_and_dead_letter")
    assert finite(log_of(), fake_clock, poison=Poison(dead_letters=FakeSink[Any]())) is not None


async def test_a_revoke_takes_blocked_messages_to_the_next_owner(fake_clock: FakeClock) -> None:
    log, handler, taken = MemoryLog(records("aa")), Poisoned(0), Recorder()
    first = MemorySource(log, clock=fake_clock)
    second = MemorySource(log, partitions=[], clock=fake_clock)
    one, other = Consumer(first, clock=fake_clock), Consumer(second, clock=fake_clock)
    async with one, other, asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(one.run(handler)), tasks.create_task(other.run(taken))]
        await fake_clock.advance(1.0)
        assert len(one.blocked) == 1
        await first.give([P0], second)
        await fake_clock.advance(1.0)
        assert not one.blocked
        assert taken.offsets == [0, 1]
        one.stop()
        other.stop()
        await asyncio.gather(*runs)
