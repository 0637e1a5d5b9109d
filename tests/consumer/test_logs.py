"""Log lines of a consumer: each begins with its name, has its level, and contains no value."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1
from consuming import PROMPT

from sluicegate import Consumer, Nak, Terminate
from sluicegate.consumer import MemoryLog, MemorySource, Poison, Position, Record
from sluicegate.testing import ScriptedSink, fail

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import FakeClock

SECRET = "4111-1111"
DEBUG, INFO, WARNING, ERROR = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def records(*keys: str, partition: int = 0) -> list[Record]:
    """Records whose values must not be logged."""
    value = SECRET.encode()
    return [Record("t", partition, offset, key, value) for offset, key in enumerate(keys)]


async def handle(message: Message) -> object:
    """Fail in the way that the key names; the errors quote the value."""
    value = bytes(message.value).decode()
    if message.key == "raises":
        raise ValueError(f"bad {value}")
    if message.key == "nak":
        return Nak(error=KeyError(value)) if message.attempt == 1 else None
    return Terminate(error=ValueError(value)) if message.key == "poison" else None


async def logged(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, source: MemorySource, **options: Any
) -> list[tuple[int, str]]:
    """Run to the end; return the lines by level, without the name."""
    caplog.set_level(DEBUG, "sluicegate.consumer")
    options = {"poison": "skip", "retry": PROMPT, **options}
    await Consumer(source, name="billing", clock=clock, **options).run(handle)
    return lines(caplog)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    found = [each for each in caplog.records if each.name.startswith("sluicegate")]
    told = [each.getMessage() for each in found]
    assert all(line.startswith("billing: ") for line in told), told
    assert SECRET not in caplog.text
    return [
        (each.levelno, line.removeprefix("billing: "))
        for each, line in zip(found, told, strict=True)
    ]


async def test_failed_tries_are_logged_for_debugging_only(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/O31: a message that is given up is logged as an error."""
    source = MemorySource(MemoryLog(records("a", "nak", "raises")), ends=True, clock=fake_clock)
    found = await logged(fake_clock, caplog, source)
    assert [(level, line.partition(" (")[0]) for level, line in found] == [
        (INFO, "partitions assigned: t/0"),
        (DEBUG, "t/0@1 failed"),
        (DEBUG, "t/0@2 failed"),
        (ERROR, "t/0@2 is given up without a dead letter"),
        (INFO, "drained in 0 s: 2 messages acknowledged, 0 dead-lettered, 0 parked, 1 given up; "
               "0 unfinished and 0 blocked, which are delivered again"),
    ]  # fmt: skip


async def test_blocked_messages_and_failing_dead_letters_are_errors(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    source = MemorySource(MemoryLog(records("poison")), ends=True, clock=fake_clock)
    letters: ScriptedSink[Any] = ScriptedSink([fail(OSError("away"))])
    consumer = Consumer(
        source, name="billing", clock=fake_clock, poison=Poison(dead_letters=letters), retry=PROMPT
    )
    caplog.set_level(DEBUG, "sluicegate.consumer")
    async with consumer:
        await consumer.run(handle)
    found = [(level, line.partition(" (")[0]) for level, line in lines(caplog)]
    assert found[1:] == [
        (ERROR, "the dead letter of t/0@0 failed"),
        (WARNING, "1 dead letters are written, the first for t/0@0"),
        (ERROR, "t/0@0 blocks its key until unblock()"),
        (INFO, "drained in 0 s: 0 messages acknowledged, 0 dead-lettered, 0 parked, 0 given up; "
               "0 unfinished and 1 blocked, which are delivered again"),
    ]  # fmt: skip


async def test_a_failed_commit_is_a_warning_and_so_is_a_drain_without_one(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/O31: the run continues."""
    source = MemorySource(MemoryLog(records("a")), ends=True, clock=fake_clock)
    source.script_commit(OSError("no broker"))
    found = await logged(fake_clock, caplog, source)
    assert found[-1] == (
        WARNING,
        "drained in 0 s: 1 messages acknowledged, 0 dead-lettered, 0 parked, 0 given up; 0 "
        "unfinished and 0 blocked, which are delivered again; the last commit failed (OSError: no "
        "broker)",
    )


async def test_claims_come_and_go_at_level_info(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(INFO, "sluicegate.consumer")
    log = MemoryLog([*records("a"), *records("b", partition=1)])
    source = MemorySource(log, clock=fake_clock)
    async with Consumer(source, name="billing", clock=fake_clock):
        await source.revoke([P0])
        source.lose([P1])
    assert lines(caplog) == [
        (INFO, "partitions assigned: t/0, t/1"),
        (INFO, "partitions revoked: t/0"),
        (INFO, "partitions lost: t/1"),
    ]


async def test_a_stored_map_that_cannot_be_read_is_a_warning(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(INFO, "sluicegate.consumer")
    log = MemoryLog(records("a"))
    log.store({P0: Position(0, "not a map of ours")})
    async with Consumer(MemorySource(log, clock=fake_clock), name="billing", clock=fake_clock):
        pass
    (_, (level, line)) = lines(caplog)
    assert level == WARNING
    assert line.startswith("the stored map of t/0 cannot be read (ForeignMap")
    assert line.endswith("its records run again")
