"""Steps before the handler: decoding, checks, deduplication, and custom steps.

White box: the class of a failed check, which no package exports.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from consuming import consume, consume_batches, records
from watch_help import running

from sluicegate import Ack, ConfigError, Consumer, Nak, PermanentError, Terminate, UnavailableError
from sluicegate.consumer import (
    DecodeError,
    MemoryLog,
    MemorySource,
    Record,
    Skip,
    check,
    decode,
    skip_seen,
    with_steps,
)
from sluicegate.consumer.handling.results import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Message
    from sluicegate.testing import FakeClock


class Handled:
    """A handler that records the values it receives."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    async def __call__(self, message: Message) -> None:
        self.values.append(message.value)


# -- steps of the user -----------------------------------------------------------------------------


async def test_steps_run_in_order_before_the_handler(fake_clock: FakeClock) -> None:
    """consumer/O28: plain and async steps; each receives the value that the previous ones
    produced.
    """
    order: list[tuple[str, object]] = []

    def first(message: Message) -> None:
        order.append(("first", message.value))
        message.decoded([message.value])

    async def second(message: Message) -> None:
        await asyncio.sleep(0.1)
        order.append(("second", message.value))

    async def handle(message: Message) -> None:
        order.append(("handler", message.value))

    ran = await consume(fake_clock, records(("a", 1)), handle, steps=[first, second])
    assert order == [("first", 1), ("second", [1]), ("handler", [1])]
    assert ran.report.counts.acked == 1


async def test_a_result_of_a_step_settles_the_message(fake_clock: FakeClock) -> None:
    """Neither later steps nor the handler see it."""
    later, handled = [], Handled()

    def settle(message: Message) -> object:
        return {b"skip": Skip(), b"ack": Ack(), b"bad": Terminate("bad")}.get(message.value)

    def record(message: Message) -> None:
        later.append(message.value)

    given = records(("a", b"skip"), ("a", b"ack"), ("a", b"bad"), ("a", b"1"))
    ran = await consume(fake_clock, given, handled, steps=[settle, record])
    assert later == handled.values == [b"1"]
    counts = ran.report.counts
    assert (counts.acked, counts.skipped, counts.terminated, ran.position) == (2, 1, 1, 4)


@pytest.mark.parametrize("error", [PermanentError("no"), DecodeError("no")])
async def test_a_permanent_error_of_a_step_is_poison_at_once(
    fake_clock: FakeClock, error: Exception
) -> None:
    """consumer/C:F5."""
    handled = Handled()

    def refuse(message: Message) -> None:
        if message.value == b"bad":
            raise error

    given = records(("a", b"1"), ("a", b"bad"), ("a", b"2"))
    ran = await consume(fake_clock, given, handled, steps=[refuse])
    counts = ran.report.counts
    assert handled.values == [b"1", b"2"]
    assert (counts.terminated, counts.naks) == (1, 1)


async def test_another_error_of_a_step_is_a_failed_try(fake_clock: FakeClock) -> None:
    def fail(message: Message) -> None:
        if message.attempt == 1:
            raise RuntimeError("not yet")

    ran = await consume(fake_clock, records(("a", b"1")), Handled(), steps=[fail])
    assert (ran.report.counts.acked, ran.report.counts.naks) == (1, 1)


async def test_a_step_that_answers_nonsense_is_poison_for_its_record(fake_clock: FakeClock) -> None:
    handled = Handled()
    ran = await consume(
        fake_clock,
        records(("a", b""), ("a", b"1")),
        handled,
        steps=[lambda message: None if message.value else "nonsense"],
    )
    assert (handled.values, ran.report.counts.terminated) == ([b"1"], 1)


async def test_a_message_that_is_tried_again_begins_with_its_own_value(
    fake_clock: FakeClock,
) -> None:
    """Otherwise the second attempt would decode an already decoded value."""
    seen: list[object] = []

    async def handle(message: Message) -> None:
        seen.append(message.value)
        if message.attempt == 1:
            raise ValueError

    steps = [decode(gzip.decompress), decode(json.loads)]
    ran = await consume(fake_clock, records(("a", gzip.compress(b"[1]"))), handle, steps=steps)
    assert (seen, ran.report.counts.acked) == ([[1], [1]], 1)


async def test_an_unblocked_message_begins_with_its_own_value(fake_clock: FakeClock) -> None:
    seen: list[object] = []

    async def handle(message: Message) -> object:
        seen.append(message.value)
        return Terminate("later") if len(seen) == 1 else None

    log = MemoryLog(records(("a", b"[1]")))
    async with running(fake_clock, log, handle, steps=[decode(json.loads)]) as consumer:
        consumer.unblock("a")
        await fake_clock.run_until_idle()
        assert consumer.stats().counts.acked == 1
    assert seen == [[1], [1]]


async def takes_two(message: Message, other: object) -> None: ...


def generates(message: Message) -> Any:
    yield


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (decode(json.loads), "steps=.*must be a list of functions"),
        ("steps", "must be a list of functions"),
        ([decode(json.loads), takes_two], r"steps\[1\]=.*must take one argument, the message"),
        ([generates], r"steps\[0\]=.*is a generator function"),
        ([None], r"steps\[0\]=None: must be a function of the message"),
    ],
)
def test_bad_steps_are_refused(fake_clock: FakeClock, steps: Any, told: str) -> None:
    source = MemorySource(MemoryLog(), clock=fake_clock)
    with pytest.raises(ConfigError, match=told):
        Consumer(source, steps=steps)


def test_without_steps_a_handler_stays_as_it_is() -> None:
    handled = Handled()
    assert with_steps(handled) is handled


# -- decoding --------------------------------------------------------------------------------------


async def loads(value: bytes) -> object:
    await asyncio.sleep(0.1)
    return json.loads(value)


@pytest.mark.parametrize("function", [json.loads, loads])
async def test_what_cannot_be_decoded_is_poison_for_its_record_alone(
    fake_clock: FakeClock, function: Callable[[Any], object], caplog: pytest.LogCaptureFixture
) -> None:
    """O-T18, consumer/C:F5: no retry, the cause is kept, and no log contains the value."""
    handled = Handled()
    given = records(("a", b'{"id": 1}'), ("a", b"secret"), ("a", None), ("a", b"2"))
    ran = await consume(fake_clock, given, handled, steps=[decode(function)])
    assert handled.values == [{"id": 1}, None, 2]
    assert (ran.report.counts.terminated, ran.report.counts.naks, ran.position) == (1, 1, 4)
    assert "DecodeError: the value cannot be decoded (JSONDecodeError)" in caplog.text
    assert "secret" not in caplog.text


async def test_a_decoder_that_cannot_reach_its_registry_poisons_nothing(
    fake_clock: FakeClock,
) -> None:
    """An environment error is a failed attempt; an outage uses up no attempt."""
    down = 5

    def function(value: bytes) -> bytes:
        nonlocal down
        if down:
            down -= 1
            raise UnavailableError("registry")
        return value.upper()

    handled = Handled()
    ran = await consume(fake_clock, records(("a", b"x")), handled, steps=[decode(function)])
    assert (handled.values, ran.report.counts.naks) == ([b"X"], 5)


@pytest.mark.parametrize("error", [EOFError(), OSError("not a gzipped file"), RecursionError()])
async def test_errors_of_decoders_are_about_the_data(
    fake_clock: FakeClock, error: Exception
) -> None:
    def function(_: object) -> object:
        raise error

    ran = await consume(fake_clock, records(("a", b"x")), Handled(), steps=[decode(function)])
    assert (ran.report.counts.terminated, ran.report.counts.naks) == (1, 1)


# -- checks ----------------------------------------------------------------------------------------


def is_positive(value: dict[str, int]) -> bool:
    return value["id"] > 0


async def is_positive_later(value: dict[str, int]) -> bool:
    await asyncio.sleep(0.1)
    return value["id"] > 0


@pytest.mark.parametrize("validator", [is_positive, is_positive_later])
async def test_a_check_refuses_what_is_false_or_raises(
    fake_clock: FakeClock, validator: Callable[[Any], object], caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/O27: the handler is not called for such a message."""
    handled = Handled()
    given = records(("a", b'{"id": 1}'), ("a", b'{"id": -12345}'), ("a", b'{"no": 1}'))
    ran = await consume(fake_clock, given, handled, steps=[decode(json.loads), check(validator)])
    assert handled.values == [{"id": 1}]
    assert (ran.report.counts.terminated, ran.report.counts.naks) == (2, 2)
    assert "SchemaError: the value is not valid (KeyError)" in caplog.text
    assert "12345" not in caplog.text


async def test_a_validator_may_return_anything_but_false(fake_clock: FakeClock) -> None:
    handled = Handled()
    given = records(("a", 0), ("a", ""), ("a", None), ("a", []))
    await consume(fake_clock, given, handled, steps=[check(lambda value: value)])
    assert handled.values == [0, "", None, []]


async def test_a_refusal_of_the_validator_s_own_kind_stays_as_it_is(fake_clock: FakeClock) -> None:
    errors: list[object] = []

    def refuse(value: object) -> None:
        raise SchemaError("the field 'id' is missing")

    def remember(message: Message) -> None:
        errors.append(message.attempts.error)

    ran = await consume(
        fake_clock, records(("a", b"1")), Handled(), steps=[remember, check(refuse)]
    )
    assert ran.report.counts.terminated == 1


@pytest.mark.parametrize("make", [decode, check])
def test_what_is_no_function_of_a_value_is_refused(make: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigError, match=f"{make.__name__}=.*must be a function of the value"):
        make("json")
    with pytest.raises(ConfigError, match="must take one argument, the value"):
        make(takes_two)
    make(dict)  # a class is a function of a value


# -- duplicates ------------------------------------------------------------------------------------


class Seen:
    """A store of idempotency keys."""

    def __init__(self) -> None:
        self.first: dict[object, str] = {}
        self.is_down = False

    def __call__(self, key: object, record: str) -> bool:
        if self.is_down:
            raise ConnectionError("down")
        return self.first.setdefault(key, record) != record

    async def later(self, key: object, record: str) -> bool:
        await asyncio.sleep(0.1)
        return self(key, record)


def with_ids(*ids: bytes | None) -> list[Record]:
    return [
        Record("orders", 0, offset, "a", offset, () if each is None else (("id", each),))
        for offset, each in enumerate(ids)
    ]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_duplicate_is_skipped_and_counted(fake_clock: FakeClock, is_async: bool) -> None:
    """O-T20, consumer/O26."""
    handled, seen = Handled(), Seen()
    step = skip_seen(seen.later if is_async else seen, header="id")
    ran = await consume(fake_clock, with_ids(b"x", b"y", b"x", b"x"), handled, steps=[step])
    assert handled.values == [0, 1]
    assert (ran.report.counts.acked, ran.report.counts.skipped, ran.position) == (2, 2, 4)


async def test_a_failed_or_interrupted_message_is_no_duplicate_of_itself(
    fake_clock: FakeClock,
) -> None:
    """A store of keys only would skip the second attempt, and a message that a crash interrupted:
    both would be lost.
    """
    seen = Seen()
    seen.first["x"] = "orders/0@0"  # this record, before a crash
    handled: list[int] = []

    async def handle(message: Message) -> None:
        handled.append(message.attempt)
        if message.attempt == 1:
            raise ValueError

    ran = await consume(fake_clock, with_ids(b"x"), handle, steps=[skip_seen(seen, header="id")])
    assert (handled, ran.report.counts.acked, ran.report.counts.skipped) == ([1, 2], 1, 0)


async def test_without_a_key_the_handler_runs(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/O26, O-T20: it fails open, and logs it once. If both are given, the header replaces
    the key.
    """
    handled, seen = Handled(), Seen()
    step = skip_seen(seen, key=lambda message: message.value or None, header="id")
    given = [*with_ids(b"x", None, None), Record("orders", 0, 3, "a", 0, (("id", b"x"),))]
    given = [Record("orders", 0, each.offset, "a", 0, each.headers) for each in given]
    ran = await consume(fake_clock, given, handled, steps=[step])
    assert (len(handled.values), ran.report.counts.skipped) == (3, 1)
    assert caplog.text.count("has no idempotency key") == 1


@pytest.mark.parametrize("is_async", [False, True])
async def test_while_the_store_fails_the_handler_runs(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    """consumer/O26, O-T20: logged once per outage."""
    handled, seen = Handled(), Seen()

    def outage(message: Message) -> None:
        seen.is_down = message.offset in {1, 2, 4}

    step = skip_seen(seen.later if is_async else seen, header="id")
    given = with_ids(b"x", b"x", b"x", b"x", b"x")
    ran = await consume(fake_clock, given, handled, steps=[outage, step])
    assert (handled.values, ran.report.counts.skipped) == ([0, 1, 2, 4], 1)
    assert caplog.text.count("could not be looked up (ConnectionError: down)") == 2


async def test_an_answer_that_is_no_bool_skips_nothing(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """For example what a client returns for a key that it has just stored."""
    handled = Handled()
    step = skip_seen(lambda key, record: "OK", header="id")
    await consume(fake_clock, with_ids(b"x"), handled, steps=[step])
    assert handled.values == [0]
    assert "seen returned a str" in caplog.text


def test_bad_arguments_of_skip_seen_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"seen=.*a function of a key and a record"):
        skip_seen(lambda key: True, header="id")  # type: ignore[misc, arg-type]  # the mistake
    with pytest.raises(ConfigError, match="key=None: must be given, or header="):
        skip_seen(Seen())
    with pytest.raises(ConfigError, match="header=''"):
        skip_seen(Seen(), header="")


# -- batches ---------------------------------------------------------------------------------------


async def test_a_step_settles_its_message_of_a_batch_alone(fake_clock: FakeClock) -> None:
    """O-T18, consumer/O29: the handler receives the others in order and decoded."""
    batches: list[list[Any]] = []

    async def handle(messages: list[Message]) -> None:
        batches.append([message.value for message in messages])

    def skip(message: Message) -> object:
        return Skip() if message.value == b"skip" else None

    given = records(("a", b"1"), ("b", b"bad"), ("c", b"skip"), ("d", b"4"))
    ran = await consume_batches(fake_clock, given, handle, 4, steps=[skip, decode(json.loads)])
    counts = ran.report.counts
    assert batches == [[1, 4]]
    assert (counts.acked, counts.skipped, counts.terminated, ran.position) == (2, 1, 1, 4)


async def test_a_batch_of_settled_messages_is_not_shown_at_all(fake_clock: FakeClock) -> None:
    async def handle(messages: list[Message]) -> None:
        raise AssertionError(messages)

    given = records(("a", b"1"), ("b", b"2"))
    ran = await consume_batches(fake_clock, given, handle, 2, steps=[lambda message: Skip()])
    assert (ran.report.counts.skipped, ran.position) == (2, 2)


async def test_messages_of_a_failed_batch_begin_with_their_own_values(
    fake_clock: FakeClock,
) -> None:
    """Including those behind a failed message of their key, whose results did not count."""
    seen: list[list[Any]] = []

    async def handle(messages: list[Message]) -> list[Any]:
        seen.append([message.value for message in messages])
        first = messages[0].attempt == 1
        return [Nak() if first and message.value == [1] else Ack() for message in messages]

    given = records(*(("a", gzip.compress(b"[%d]" % place)) for place in (0, 1, 2)))
    steps = [decode(gzip.decompress), decode(json.loads)]
    ran = await consume_batches(fake_clock, given, handle, 3, steps=steps)
    assert seen == [[[0], [1], [2]], [[1], [2]]]
    assert (ran.report.counts.acked, ran.position) == (3, 3)


async def test_a_failing_step_of_a_batch_fails_its_message_alone(fake_clock: FakeClock) -> None:
    """consumer/C:F5, consumer/C:O1: later messages of its key are handled after it."""
    seen: list[list[Any]] = []

    async def handle(messages: list[Message]) -> None:
        seen.append([message.value for message in messages])

    def fail(message: Message) -> None:
        if message.value == b"fails" and message.attempt == 1:
            raise RuntimeError

    given = records(("a", b"fails"), ("a", b"behind"), ("b", b"other"))
    ran = await consume_batches(fake_clock, given, handle, 3, steps=[fail])
    assert [value for values in seen for value in values] == [b"other", b"fails", b"behind"]
    assert (ran.report.counts.naks, ran.position) == (1, 3)


async def test_a_handler_with_steps_of_its_own_is_for_single_messages(
    fake_clock: FakeClock,
) -> None:
    with pytest.raises(ConfigError, match="one message at a time"):
        await consume_batches(fake_clock, [], with_steps(Handled(), decode(bytes)), 2)
