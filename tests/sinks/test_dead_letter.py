"""Dead letters: which items become one, what is recorded, and the effect of a failing target."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
import tenacity

from sluicegate import (
    Batcher,
    ConfigError,
    DeadLetter,
    ErrorClass,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    TransientError,
    UnknownOutcomeError,
    stack,
)
from sluicegate.errors import BatcherBroken, DeadLetterLimit
from sluicegate.sinks import DeadLetterRecord, MemorySink
from sluicegate.testing import ScriptedSink, fail, ok, partial

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate import Sink
    from sluicegate.testing import FakeClock

FIXED = tenacity.wait_fixed(1.0)


async def outcomes(sink: Sink[Any], items: Iterable[Any] = "abcd", **limits: Any) -> list[str]:
    async with Batcher(sink, limits=Limits(max_items=4, **limits)) as batcher:
        receipts = [await batcher.submit(item) for item in items]
        await batcher.flush()
        report = await batcher.shutdown()
        report.verify()
        return [receipt.outcome.value if receipt.outcome else "?" for receipt in receipts]


async def test_only_the_failed_items_with_their_reasons(fake_clock: FakeClock) -> None:
    """B-T18, B-T19, batcher/4a.7: permanent ones at once, transient ones after their attempts; the
    others are delivered once.
    """
    letters: MemorySink[DeadLetterRecord[str]] = MemorySink()
    steps: Any = [
        partial({1: PermanentError("bad b"), 2: TransientError("t1")}),
        fail(TransientError("t2")),
        fail(TransientError("t3")),
    ]
    inner: ScriptedSink[str] = ScriptedSink(steps)
    assert await outcomes(stack(inner, Retry(attempts=3, backoff=FIXED), DeadLetter(letters))) == [
        "delivered",
        "dead_lettered",
        "dead_lettered",
        "delivered",
    ]
    assert inner.applied == ["a", "d"]
    b, c = letters.items
    assert (b.item, b.error_type, b.error_class, b.message, b.attempts) == (
        "b",
        "PermanentError",
        "permanent",
        "bad b",
        1,
    )
    assert (c.item, c.error_class, c.message, c.attempts) == ("c", "transient", "t3", 3)
    assert (c.last_at - c.first_at).total_seconds() == pytest.approx(2.0)
    assert (b.last_at - b.first_at).total_seconds() == 0
    assert b.key != c.key
    assert b.batch_id == c.batch_id
    assert not b.maybe_delivered
    assert b.as_dict()["first_at"].endswith("+00:00")
    assert {*b.as_dict()} == {*DeadLetterRecord.COLUMNS} - {"item_form"}
    assert {*b.as_json()} == {*DeadLetterRecord.COLUMNS}


async def test_a_record_that_cannot_be_written_is_loud_and_leaves_the_item_rejected(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B-T19: it is logged; the item's own error stays the cause."""
    target: ScriptedSink[Any] = ScriptedSink(default=fail(OSError("disk full")))
    sink: Any = stack(ScriptedSink(default=partial({0: PermanentError("bad")})), DeadLetter(target))
    with caplog.at_level(logging.ERROR):
        assert await outcomes(sink, "ab") == ["rejected", "delivered"]
    assert "disk full" in caplog.text
    assert "bad" in caplog.text


async def test_a_record_that_cannot_be_made_concerns_its_item_only(fake_clock: FakeClock) -> None:
    """A user's `record` function raises for one of them."""
    letters: MemorySink[Any] = MemorySink()

    def row(record: DeadLetterRecord[str]) -> tuple[str, str]:
        if record.item == "a":
            raise KeyError("a")
        return record.item, record.message

    sink: Any = stack(
        ScriptedSink(default=fail(PermanentError("no"))), DeadLetter(letters, record=row)
    )
    assert await outcomes(sink, "ab") == ["rejected", "dead_lettered"]
    assert letters.items == [("b", "no")]


async def test_the_record_is_written_before_the_outcome_is_final(fake_clock: FakeClock) -> None:
    """batcher/4a.7."""
    written = asyncio.Event()
    release = asyncio.Event()

    async def target(batch: Any) -> None:
        written.set()
        await release.wait()

    sink: Any = stack(ScriptedSink(default=partial({0: PermanentError("bad")})), DeadLetter(target))
    async with Batcher(sink, limits=Limits(max_items=2)) as batcher:
        bad, good = [await batcher.submit(item) for item in "ab"]
        await written.wait()
        assert (bad.outcome, good.outcome) == (None, Outcome.DELIVERED)
        release.set()
        assert await bad.settled() is Outcome.DEAD_LETTERED


async def test_a_target_that_is_a_stack_or_the_same_sink(fake_clock: FakeClock) -> None:
    """B-T59: nothing counts as delivered, and the write key differs, so that a deduplicating server
    keeps the record.
    """
    server: ScriptedSink[Any] = ScriptedSink(
        [partial({1: PermanentError("bad")}), fail(TransientError("t"))]
    )
    target: Any = stack(server, Retry(backoff=FIXED))
    sink: Any = stack(server, DeadLetter(target, record=lambda letter: f"repaired {letter.item}"))
    assert await outcomes(sink, "ab") == ["delivered", "dead_lettered"]
    first, refused, again = server.calls
    assert refused.write_key == again.write_key != first.write_key
    assert server.applied == ["a", "repaired b"]


async def test_the_flush_timeout_counts_anew_for_the_target(fake_clock: FakeClock) -> None:
    """design 4: a new timeout begins with each send to a dead-letter target."""

    async def after(seconds: float, error: Exception | None) -> None:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error

    sink: Any = stack(
        lambda batch: after(4.0, PermanentError("p")), DeadLetter(lambda batch: after(4.0, None))
    )
    assert await outcomes(sink, "a", flush_timeout=5.0) == ["dead_lettered"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"max_consecutive": 6}, "8 items in a row"),
        ({"max_ratio": 0.5, "window": 8}, "8 of the last 8 items"),
    ],
)
async def test_a_good_stream_is_not_emptied_into_a_file(
    fake_clock: FakeClock, settings: dict[str, Any], why: str
) -> None:
    """Above the limit the batcher stops, and pending items are returned."""
    letters: MemorySink[Any] = MemorySink()
    sink: Any = stack(
        ScriptedSink([ok(), *[fail(PermanentError("schema"))] * 9]), DeadLetter(letters, **settings)
    )
    batcher: Batcher[int] = Batcher(sink, limits=Limits(max_items=4, max_pending_items=40))
    await batcher.__aenter__()
    await batcher.add_many(range(20))
    with pytest.raises(BatcherBroken) as caught:
        while True:
            await batcher.add(99)
            await batcher.flush()
    assert isinstance(caught.value.__cause__, DeadLetterLimit)
    assert why in str(caught.value.__cause__)
    report = await batcher.shutdown()
    report.verify()
    assert report.tally.dead_lettered == len(letters.items) == 4
    assert set(report.unsent) >= {*range(8, 20)}


def test_bad_arguments() -> None:
    """Each error names the argument and the rule."""
    for settings, message in [
        ({"max_ratio": 1.5}, "max_ratio=1.5: must be a share"),
        ({"max_consecutive": 0}, "max_consecutive=0"),
        ({"window": 0}, "window=0"),
        ({"record": 5}, "record=5: must be a function"),
    ]:
        with pytest.raises(ConfigError, match=message):
            DeadLetter(MemorySink(), **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="target=5"):
        DeadLetter(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Unshown(Exception):
    """An item whose `str()` raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


async def test_an_error_whose_text_cannot_be_shown_makes_its_letter_and_hurts_no_neighbour(
    fake_clock: FakeClock,
) -> None:
    letters: MemorySink[DeadLetterRecord[str]] = MemorySink()
    errors = {0: PermanentError("bad a"), 1: Unshown(), 2: PermanentError("bad c")}
    assert await outcomes(stack(ScriptedSink([partial(errors)]), DeadLetter(letters))) == [
        *["dead_lettered"] * 3,
        "delivered",
    ]
    a, b, c = letters.items
    assert (a.message, c.message) == ("bad a", "bad c")
    assert (b.item, b.error_type) == ("b", "Unshown")
    assert "cannot be shown" in b.message


async def test_a_text_that_utf_8_has_no_form_for_makes_its_letter(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """For example in a file name: a store that encodes the record would refuse it."""
    caplog.set_level(
        logging.CRITICAL, "sluicegate"
    )  # the traceback contains it too, and so would pytest's own report
    letters: MemorySink[DeadLetterRecord[str]] = MemorySink()
    assert await outcomes(
        stack(ScriptedSink([fail(OSError("\udce4 is gone"))]), DeadLetter(letters)), "a"
    ) == ["dead_lettered"]
    assert letters.items[0].message == "\\udce4 is gone"


class OddKey:
    """A key whose `str()` raises."""

    def __repr__(self) -> str:
        raise ValueError("no text")


async def test_a_letter_that_cannot_be_made_leaves_its_own_item_rejected_and_no_neighbour(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    letters: MemorySink[str] = MemorySink()

    def record(made: DeadLetterRecord[str]) -> str:
        return {"a": "letter a", "c": "letter c"}[made.item]

    sink: Any = stack(
        ScriptedSink(default=fail(PermanentError("no"))), DeadLetter(letters, record=record)
    )
    assert await outcomes(sink, "abc") == ["dead_lettered", "rejected", "dead_lettered"]
    assert letters.items == ["letter a", "letter c"]
    assert "1 items of batch" in caplog.text


async def test_a_key_without_a_text_makes_its_letter(fake_clock: FakeClock) -> None:
    letters: MemorySink[DeadLetterRecord[Any]] = MemorySink()
    sink: Any = stack(ScriptedSink(default=fail(PermanentError("no"))), DeadLetter(letters))
    async with Batcher(sink, key=lambda _: OddKey(), limits=Limits(max_items=1)) as batcher:
        await batcher.add("a")
    assert [letter.item_key for letter in letters.items] == [
        ":<OddKey, whose repr raised ValueError>"
    ]


class Classifying(ScriptedSink[Any]):
    """Its classifier raises for an error without a text."""

    def classify(self, error: BaseException) -> ErrorClass | None:
        return ErrorClass.PERMANENT if "bad" in str(error) else None


async def test_a_classifier_that_raises_for_one_error_hurts_no_neighbour(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    letters: MemorySink[DeadLetterRecord[str]] = MemorySink()
    sink: Any = stack(
        Classifying([partial({0: PermanentError("bad a"), 1: Unshown()})]), DeadLetter(letters)
    )
    assert await outcomes(sink, "ab") == ["dead_lettered", "dead_lettered"]
    assert [letter.error_class for letter in letters.items] == ["permanent", "unlisted"]
    assert "classify" in caplog.text


class Detailed(Exception):
    """Like a database error: its message quotes the row, and so does its detail."""

    sqlstate = "22P02"
    column_name = "amount"

    def __init__(self) -> None:
        super().__init__(
            "invalid input: secret-value\nDETAIL:  Failing row contains (secret-value)."
        )


@pytest.mark.parametrize("target", ["takes it", "refuses it"])
async def test_log_lines_hold_no_values_of_items(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    written: ScriptedSink[Any] = ScriptedSink(
        default=ok() if target == "takes it" else fail(Detailed())
    )
    with caplog.at_level(logging.INFO, "sluicegate.dead_letter"):
        await outcomes(stack(ScriptedSink(default=fail(Detailed())), DeadLetter(written)), "a")
    (line,) = [
        each.getMessage() for each in caplog.records if each.name == "sluicegate.dead_letter"
    ]
    assert "secret" not in line
    assert "SQLSTATE 22P02, column amount" in line
    if target == "takes it":
        assert "secret-value" in written.applied[0].message, "the letter has the whole error"


async def test_the_reason_for_stopping_holds_no_values_of_items(fake_clock: FakeClock) -> None:
    batcher: Batcher[str] = Batcher(
        stack(ScriptedSink(default=fail(Detailed())), DeadLetter(MemorySink(), max_consecutive=1))
    )
    await batcher.__aenter__()
    with pytest.raises(BatcherBroken) as caught:
        await batcher.add("a")
        await batcher.flush()
    await batcher.shutdown()
    assert "secret" not in str(caught.value.__cause__)


LOST_ANSWER = UnknownOutcomeError("the answer to COMMIT was lost")


@pytest.mark.filterwarnings("ignore:a DeadLetter inside a Retry")
async def test_a_retry_outside_tries_again_what_may_have_been_applied(
    fake_clock: FakeClock,
) -> None:
    """It does not become a dead letter after its second attempt, so a third one delivers it."""
    letters: MemorySink[DeadLetterRecord[str]] = MemorySink()
    inner: ScriptedSink[str] = ScriptedSink([fail(LOST_ANSWER), fail(TransientError("deadlock"))])
    assert await outcomes(
        stack(inner, DeadLetter(letters), Retry(attempts=3, backoff=FIXED)), "a"
    ) == ["delivered"]
    assert letters.items == []
