"""The letters of a consumer: their content and their writes.

White box: the writer of letters without a consumer.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import pytest
from consumer_help import P0, finite, log_of

from sluicegate import (
    Message,
    PermanentError,
    Terminate,
    ThrottledError,
    ToDeadLetter,
    TransientError,
    UnavailableError,
    WriteResult,
)
from sluicegate._core.classify import classified
from sluicegate._core.order.keys import identity
from sluicegate._core.order.lanes import Lanes
from sluicegate.consumer import Poison, PoisonError, Position, Record, TopicPartition
from sluicegate.consumer.failures.dead_letters import LetterWriter
from sluicegate.consumer.lanes.keys import alone
from sluicegate.consumer.progress.claim import Claim
from sluicegate.errors import ParkedBehind
from sluicegate.files import FileSink
from sluicegate.files.letters import FileStore
from sluicegate.letters.items import NoSourceRecordError, item_of_record, record_of_item
from sluicegate.letters.letter import Selection
from sluicegate.testing import BlockingSink, ScriptedSink, fail, ok

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sluicegate import Batch
    from sluicegate.consumer import SourceRecord
    from sluicegate.testing import FakeClock


class NoOwner:
    def settle(self, message: Any, result: object) -> bool:
        raise AssertionError

    def in_progress(self, message: Any) -> None:
        raise AssertionError


def record(offset: int, key: object = b"k") -> Record:
    return Record("orders", 3, offset, key, b"v%d" % offset, [("h", b"\xff")], 1_700_000_000_000)


def message_of(made: SourceRecord, *, lane: Any = b"k") -> Message:
    claim = Claim(TopicPartition("orders", 3), 1, Position(0), Lanes(), NoOwner())
    return Message(lane, 1, made, claim, 7)


def message(offset: int, **options: Any) -> Message:
    return message_of(record(offset), **options)


ERROR = PoisonError("no such customer")


def offsets(call: Sequence[Any]) -> list[int]:
    return [letter.item["offset"] for letter in call]


async def test_a_letter_holds_the_record_its_error_and_its_attempts(fake_clock: FakeClock) -> None:
    """consumer/O24: key, value, headers, subject, class, reason, attempts, last error."""
    sink = ScriptedSink[Any]()
    poison = message(1044)
    start = fake_clock.wall_time()
    error = TransientError("still locked")
    for _ in range(2):
        await fake_clock.sleep(1.0)
        tries = poison.attempts.and_one(fake_clock.now(), error, counts=True)
        poison.claim.attempts[poison.index] = tries
    await fake_clock.sleep(1.0)
    await LetterWriter(sink, "billing", fake_clock).bury(poison, error)
    (letter,) = sink.applied
    assert letter.item == {
        "topic": "orders",
        "partition": 3,
        "offset": 1044,
        "key": b"k",
        "value": b"v1044",
        "headers": [["h", b"\xff"]],
        "timestamp": 1_700_000_000_000,
    }
    assert (letter.error_type, letter.error_class) == ("TransientError", "transient")
    assert letter.message == "still locked"
    assert letter.attempts == 2
    assert letter.first_at == datetime.fromtimestamp(start + 1, UTC)
    assert letter.last_at == datetime.fromtimestamp(start + 3, UTC)
    assert (letter.batcher, letter.batch_id) == ("billing", "orders/3@1044")
    assert letter.item_key == ":b'k'"
    assert not letter.parked_behind


async def test_a_try_that_was_not_counted_as_a_failure_is_an_attempt(fake_clock: FakeClock) -> None:
    """`Terminate` at the first attempt, or after a failed one."""
    sink = ScriptedSink[Any]()
    writer = LetterWriter(sink, "billing", fake_clock)
    poison = message(1)
    await writer.bury(poison, ERROR)
    poison.claim.attempts[poison.index] = poison.attempts.and_one(
        0.0, TransientError(), counts=True
    )
    await writer.bury(poison, ERROR)
    assert [letter.attempts for letter in sink.applied] == [1, 2]
    assert {letter.error_class for letter in sink.applied} == {"permanent"}


async def test_the_causes_and_codes_of_errors_are_kept(fake_clock: FakeClock) -> None:
    """consumer/O24."""

    class Refused(ValueError):
        sqlstate = "23505"

    sink = ScriptedSink[Any]()
    error = PermanentError("twice")
    error.__cause__ = Refused("values")
    writer = LetterWriter(sink, "billing", fake_clock)
    await writer.bury(message(1), error)
    await writer.bury(message(2), ParkedBehind("behind orders/3@1"))
    first, second = sink.applied
    assert (first.cause_type, first.code) == ("Refused", "23505")
    assert second.parked_behind


async def test_the_key_of_a_letter_names_its_record_and_consumer(fake_clock: FakeClock) -> None:
    """consumer/C:F2: a store skips the letter of a record that is written again, and no other
    letter.
    """
    sink = ScriptedSink[Any]()
    made = [
        ("billing", record(5)),
        ("billing", record(5, b"redelivered")),
        ("shipping", record(5)),
        ("billing", record(6)),
        ("billing", Record("orders", 2, 5, timestamp=1_700_000_000_000)),
        ("billing", Record("order", 3, 5, timestamp=1_700_000_000_000)),
        ("billing", Record("orders", 3, 5, timestamp=1_800_000_000_000)),
        ("billing/eu", Record("orders", 3, 5, timestamp=1_700_000_000_000)),
        ("billing", Record("eu/orders", 3, 5, timestamp=1_700_000_000_000)),
        ("billing%2Feu", Record("orders", 3, 5, timestamp=1_700_000_000_000)),
    ]
    for name, each in made:
        await LetterWriter(sink, name, fake_clock).bury(message_of(each), ERROR)
    keys = [letter.key for letter in sink.applied]
    assert keys[0] == keys[1] == "billing/orders/3@5#1700000000000"
    assert len({*keys}) == len(keys) - 1


@pytest.mark.parametrize(
    ("lane", "text"),
    [("acme", "acme"), (7, ":7"), (None, ":None"), (identity(("a", 1)), ":('a', 1)")],
)
async def test_the_item_key_is_the_order_key(fake_clock: FakeClock, lane: Any, text: str) -> None:
    sink = ScriptedSink[Any]()
    await LetterWriter(sink, "billing", fake_clock).bury(message(1, lane=lane), ERROR)
    assert sink.applied[0].item_key == text


async def test_a_record_without_order_has_no_item_key(fake_clock: FakeClock) -> None:
    """`unordered`, and keyless records in parallel mode: a replay may send them in any order."""
    sink = ScriptedSink[Any]()
    unordered = message(1, lane=alone(record(1)))
    await LetterWriter(sink, "billing", fake_clock).bury(unordered, ERROR)
    assert sink.applied[0].item_key is None


@pytest.mark.parametrize("value", [b"\x00\xff", "text", None, {"n": [1, b"\xff"]}, float("inf")])
async def test_a_letter_in_a_file_gives_the_record_back_exactly(
    fake_clock: FakeClock, tmp_path: Path, value: object
) -> None:
    """consumer/O25: bytes survive, also in headers."""
    made = Record("orders", 3, 9, b"\xffk", value, [("h", b"\xff"), ("h", b"")], 12)
    writer = LetterWriter(FileSink(tmp_path / "dlq.jsonl"), "billing", fake_clock)
    async with writer.open():
        await writer.bury(message_of(made), ERROR)
    async with FileStore(tmp_path / "dlq.jsonl") as store:
        (letter,) = [letter async for letter in store.letters(Selection())]
    assert record_of_item(letter.original()) == made


@pytest.mark.parametrize(
    "item",
    [
        "text",
        None,
        {},
        {**item_of_record(record(1)), "offset": "1"},
        {**item_of_record(record(1)), "partition": True},
        {**item_of_record(record(1)), "headers": [["h"]]},
        {**item_of_record(record(1)), "headers": [1]},
        {name: value for name, value in item_of_record(record(1)).items() if name != "topic"},
    ],
)
def test_another_item_is_no_record(item: object) -> None:
    with pytest.raises(NoSourceRecordError, match=r"^(no|headers|offset|partition) "):
        record_of_item(item)


# -- of a consumer -----------------------------------------------------------------------------------


async def give_up(message: Message) -> Terminate | ToDeadLetter | None:
    if message.offset == 0:
        return Terminate("no such customer")
    return ToDeadLetter("too old") if message.offset == 1 else None


async def test_the_position_passes_a_message_once_its_letter_is_written(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:F2, consumer/O24: a failed write is retried and holds the position."""
    log = log_of("a", "b", "a", "c")
    sink = ScriptedSink[Any]([fail(UnavailableError("down")) for _ in range(3)])
    report = await finite(
        log, fake_clock, name="billing", poison=Poison("skip", dead_letters=sink), drain=60.0
    ).run(give_up)
    assert report.complete
    letters = {letter.item["offset"]: letter for letter in sink.applied}
    assert letters.keys() == {0, 1}
    assert [letters[offset].message for offset in (0, 1)] == ["no such customer", "too old"]
    assert {letter.batcher for letter in sink.applied} == {"billing"}
    assert log.positions[P0] == Position(4)


async def test_a_message_whose_letter_is_not_written_is_not_settled(fake_clock: FakeClock) -> None:
    """consumer/C:F2: the consumer stops, and both records are redelivered."""
    log = log_of("a", "b", "c")
    sink = BlockingSink[Any]()
    async with finite(
        log, fake_clock, name="billing", poison=Poison("skip", dead_letters=sink)
    ) as consumer:
        running = asyncio.ensure_future(consumer.run(give_up))
        await fake_clock.advance(600.0)
        assert len(sink.calls) > 1, "each has a limit"
        consumer.stop()
        report = await running
    assert not report.complete
    assert not sink.applied
    assert log.positions[P0].offset == 0
    letters = ScriptedSink[Any]()
    again = finite(log, fake_clock, name="billing", poison=Poison("skip", dead_letters=letters))
    assert (await again.run(give_up)).complete
    assert sorted(offsets(letters.applied)) == [0, 1]


# -- writing -----------------------------------------------------------------------------------------


async def test_a_letter_is_confirmed_before_bury_returns(fake_clock: FakeClock) -> None:
    """consumer/C:F2."""
    sink = BlockingSink[Any]()
    (writing,) = await begin(LetterWriter(sink, "billing", fake_clock), fake_clock, 1)
    assert len(sink.calls) == 1
    assert not writing.done()
    sink.release()
    await writing
    assert offsets(sink.applied) == [1]


async def test_a_letter_that_is_not_taken_raises(fake_clock: FakeClock) -> None:
    """consumer/C:F2, consumer/O24: a failed write raises, so the message is not settled."""
    refused = PermanentError("no")
    sink = ScriptedSink[Any]([fail(refused), ok()])
    writer = LetterWriter(sink, "billing", fake_clock)
    with pytest.raises(PermanentError) as raised:
        await writer.bury(message(1), ERROR)
    assert raised.value is refused
    await writer.bury(message(1), ERROR)
    assert offsets(sink.applied) == [1]


@dataclass
class Gate:
    """Accepts one write per release by the test, unless `refuses` contains the letter."""

    refuses: Any = lambda *_: {}

    def __post_init__(self) -> None:
        self.calls: list[list[int]] = []
        self.keys: list[str] = []
        self.room = asyncio.Semaphore(0)
        self.is_open = False

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_open = False

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        assert self.is_open
        self.calls.append(offsets(batch))
        self.keys.append(batch.write_key)
        await self.room.acquire()
        return WriteResult.failed(batch, self.refuses(batch, len(self.calls)))


async def begin(writer: LetterWriter, clock: FakeClock, *numbers: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(writer.bury(message(number), ERROR)) for number in numbers]
    await clock.run_until_idle()
    return tasks


async def results(writer: LetterWriter, sink: Gate, clock: FakeClock, *numbers: int) -> list[Any]:
    """The errors that `bury` raised for these letters, which begin together; one write after
    another.
    """
    tasks = await begin(writer, clock, *numbers)
    while not all(task.done() for task in tasks):
        sink.room.release()
        await clock.run_until_idle()
    return [task.exception() for task in tasks]


async def test_letters_that_wait_share_the_next_write(fake_clock: FakeClock) -> None:
    """A burst of poison costs few writes."""
    sink = Gate()
    writer = LetterWriter(sink, "billing", fake_clock)
    async with writer.open():
        assert await results(writer, sink, fake_clock, *range(700)) == [None] * 700
    assert sink.calls == [[0], [*range(1, 501)], [*range(501, 700)]]
    assert not sink.is_open


async def test_a_refused_letter_delays_no_other(fake_clock: FakeClock) -> None:
    """If a write fails as a whole because of one letter, each letter is retried alone."""

    def refuses(batch: Any, _: int) -> dict[int, BaseException]:
        error = PermanentError("one of them is bad")
        return dict.fromkeys(range(len(batch)), error) if 2 in offsets(batch) else {}

    sink = Gate(refuses)
    writer = LetterWriter(sink, "billing", fake_clock)
    async with writer.open():
        first, *errors = await results(writer, sink, fake_clock, 0, 1, 2, 3)
        assert first is None
        assert [type(error) for error in errors] == [UnavailableError] * 3
        assert len({id(error) for error in errors}) == 3
        errors = await results(writer, sink, fake_clock, 1, 2, 3, 4, 5)
        assert [error is None for error in errors] == [True, False, True, True, True]
        assert type(errors[1]) is PermanentError
        errors = await results(writer, sink, fake_clock, 6, 2, 7, 8)
        assert [error is None for error in errors] == [True, False, True, True]
        assert sink.calls == [[0], [1, 2, 3], [1], [2], [3], [4, 5], [6], [2], [7, 8]]
        del sink.calls[:]
        _, alone, _ = await begin(writer, fake_clock, 0, 2, 5)
        alone.cancel()
        assert await results(writer, sink, fake_clock, 1, 3) == [None] * 2
        assert await results(writer, sink, fake_clock, 8) == [None]
        await results(writer, sink, fake_clock, 9, 2, 10)
    assert sink.calls == [[0], [5, 1, 3], [8], [9], [2, 10]]


async def test_an_outage_is_no_letters_fault(fake_clock: FakeClock) -> None:
    """The letters still share writes; each gets its own error with the requested delay."""

    def refuses(batch: Any, call: int) -> dict[int, BaseException]:
        error = ThrottledError("later", retry_after=9.0)
        return {} if call > 2 else dict.fromkeys(range(len(batch)), error)

    sink = Gate(refuses)
    writer = LetterWriter(sink, "billing", fake_clock)
    async with writer.open():
        errors = await results(writer, sink, fake_clock, 0, 1, 2)
        assert [error.retry_after for error in errors] == [9.0] * 3
        assert len({id(error) for error in errors}) == 3
        assert classified(errors[1]).value == "unavailable"
        assert await results(writer, sink, fake_clock, 0, 1, 2) == [None] * 3
    assert sink.calls == [[0], [1, 2], [0], [1, 2]]
    assert sink.keys[0] == sink.keys[2]  # a destination with idempotency keys recognizes it
    assert sink.keys[1] == sink.keys[3]
    assert len({*sink.keys}) == 2


async def test_a_cancelled_call_leaves_the_others_to_the_next(fake_clock: FakeClock) -> None:
    """Whether it writes for all, waits for its turn, or is part of another call's write."""
    sink = Gate()
    writer = LetterWriter(sink, "billing", fake_clock)
    async with writer.open():
        tasks = await begin(writer, fake_clock, 0, 1, 2, 3)
        for number in (0, 3):
            tasks[number].cancel()
        await fake_clock.run_until_idle()
        assert sink.calls == [[0], [1, 2]]
        tasks[1].cancel()
        await fake_clock.run_until_idle()
        tasks += await begin(writer, fake_clock, 4)
        for _ in range(2):
            sink.room.release()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert sink.calls == [[0], [1, 2], [2], [4]]
    assert [number for number, error in enumerate(ended) if error is None] == [2, 4]


async def test_a_letter_that_is_no_longer_wanted_leaves_nothing_behind(
    fake_clock: FakeClock,
) -> None:
    """It is cancelled in a shared write that then fails; when written again, it shares a write
    again.
    """

    def refuses(batch: Any, call: int) -> dict[int, BaseException]:
        return dict.fromkeys(range(len(batch)), PermanentError("bad")) if call == 2 else {}

    sink = Gate(refuses)
    writer = LetterWriter(sink, "billing", fake_clock)
    async with writer.open():
        tasks = await begin(writer, fake_clock, 0, 1, 2)
        sink.room.release()
        await fake_clock.run_until_idle()
        tasks[2].cancel()
        await fake_clock.run_until_idle()
        sink.room.release()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await results(writer, sink, fake_clock, 3, 1, 2, 4) == [None] * 4
    assert sink.calls == [[0], [1, 2], [3], [1], [2, 4]]


async def test_logs_name_the_letters_without_values(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ScriptedSink[Any]()
    with caplog.at_level(logging.WARNING):
        await LetterWriter(sink, "billing", fake_clock).bury(message(1), PoisonError("secret"))
    assert caplog.messages == [
        "billing: 1 dead letters are written, the first for orders/3@1 (PoisonError)"
    ]
