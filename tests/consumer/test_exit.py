"""`poison="exit"`: the run ends with the error of the message that cannot be handled.

White box: the map beside a committed position is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, Poisoned, Recorder, finite, log_of

from sluicegate import Nak, RetryPolicy
from sluicegate.consumer import Poison, PoisonError, Position
from sluicegate.consumer.progress import offset_map
from sluicegate.testing import FakeClock, FakeSink

if TYPE_CHECKING:
    from sluicegate import Message

ONCE = RetryPolicy(attempts=1)


class BrokenHandler(RuntimeError):
    """The exception that handlers raise in these tests."""


class Raising(Recorder):
    """Raises the same exception object for this offset."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset
        self.error = BrokenHandler("no such table")

    async def __call__(self, message: Message) -> None:
        await super().__call__(message)
        if message.offset == self.offset:
            raise self.error


@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_the_exception_of_a_handler_ends_the_run_and_keeps_the_position(
    fake_clock: FakeClock, ordering: str, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/G25, S14, S-T13: the run raises the exception object, and the next run begins with
    its message.
    """
    log, handler = log_of(*"aaaaa"), Raising(2)
    options = {"poison": "exit", "retry": ONCE, "ordering": ordering}
    with pytest.raises(BrokenHandler) as raised:
        await finite(log, fake_clock, **options).run(handler)
    assert raised.value is handler.error
    assert handler.offsets == [0, 1, 2]
    assert log.positions[P0] == Position(2)
    assert "consumer: t/0@2 cannot be handled, which ends the run" in caplog.text
    later = Recorder()
    await finite(log, fake_clock, **options).run(later)
    assert later.offsets == [2, 3, 4]


async def test_it_ends_after_the_last_attempt(fake_clock: FakeClock) -> None:
    """S-T13: retries come first; without `retry=`, an unknown exception has three attempts."""
    log, handler = log_of(*"a"), Raising(0)
    with pytest.raises(BrokenHandler):
        await finite(log, fake_clock, poison="exit").run(handler)
    assert handler.offsets == [0, 0, 0]


async def test_other_keys_that_run_are_finished(fake_clock: FakeClock) -> None:
    """Messages handled behind it are in the offset map and are not handled again."""
    log = log_of(*"ab")

    async def handle(message: Message) -> None:
        if message.key == "a":
            await fake_clock.sleep(1.0)
            raise BrokenHandler
        await fake_clock.sleep(2.0)

    options = {"poison": "exit", "retry": ONCE}
    with pytest.raises(BrokenHandler):
        await finite(log, fake_clock, **options).run(handle)
    position = log.positions[P0]
    assert (position.offset, offset_map.decode(*position)) == (0, [(1, 2)])


async def test_skip_goes_on_where_exit_ends(fake_clock: FakeClock) -> None:
    """S14, S-T13: IGNORE advances."""
    log, handler = log_of(*"aaaa"), Raising(1)
    report = await finite(log, fake_clock, poison="skip", retry=ONCE).run(handler)
    assert handler.offsets == [0, 1, 2, 3]
    assert log.positions[P0] == Position(4)
    assert (report.counts.acked, report.counts.terminated) == (3, 1)


async def test_a_message_that_is_given_up_ends_the_run_too(fake_clock: FakeClock) -> None:
    log = log_of(*"aa")
    with pytest.raises(PoisonError, match="bad 1"):
        await finite(log, fake_clock, poison="exit").run(Poisoned(1))
    assert log.positions[P0] == Position(1)


async def test_dead_letters_get_only_what_a_handler_sends_there(fake_clock: FakeClock) -> None:
    log = log_of(*"aa")
    letters: FakeSink[object] = FakeSink()
    with pytest.raises(PoisonError, match="bad 1"):
        await finite(log, fake_clock, poison=Poison("exit", dead_letters=letters)).run(Poisoned(1))
    assert not letters.applied


@pytest.mark.parametrize(("failing", "stored"), [(0, 0), (2, 2), (4, 4)])
@pytest.mark.parametrize("ordering", ["partition", "key"])
async def test_a_batch_with_a_message_that_fails_never_moves_the_position_past_it(
    fake_clock: FakeClock, failing: int, stored: int, ordering: str
) -> None:
    """S12, S-T10: if the first message fails, the position stays and never moves back; if the third
    fails, it stands behind the second.

    An acknowledgement behind the gap does not count in the same partition.
    """
    log = log_of(*"aaaaaaa")
    log.store({P0: Position(0)})

    async def handle(messages: list[Message]) -> list[Nak | None]:
        return [Nak() if message.offset == failing else None for message in messages]

    options = {"poison": "exit", "retry": ONCE, "ordering": ordering}
    with pytest.raises(Exception, match="the handler did not acknowledge"):
        await finite(log, fake_clock, **options).run_batch(handle, size=5)
    assert log.positions[P0] == Position(stored)
    offsets = [position.offset for _, position in log.commits]
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("failing", [0, 2])
async def test_a_batch_handler_that_raises_keeps_the_position_before_the_cause(
    fake_clock: FakeClock, failing: int
) -> None:
    """S-T10: the batch is split until its cause is alone, so the messages before it are stored."""
    log = log_of(*"aaaaa")
    log.store({P0: Position(0)})

    async def handle(messages: list[Message]) -> None:
        if failing in [message.offset for message in messages]:
            raise BrokenHandler

    with pytest.raises(BrokenHandler):
        await finite(log, fake_clock, poison="exit", retry=ONCE, ordering="partition").run_batch(
            handle, size=5
        )
    assert log.positions[P0] == Position(failing)
