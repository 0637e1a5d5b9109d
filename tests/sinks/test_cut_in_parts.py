"""The outcomes of items whose write is cut while it is split into parts, or while it writes dead
letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tenacity

from sluicegate import (
    Batcher,
    DeadLetter,
    FanOut,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    Timeout,
    TransientError,
    UnknownOutcomeError,
    stack,
)
from sluicegate.sinks import Isolate, MemorySink, Split
from sluicegate.testing import FakeClock, ScriptedSink, fail, hang, ignore_cancel, ok, partial

if TYPE_CHECKING:
    from sluicegate import Sink

FOUR = Limits(max_items=4)


async def outcomes(sink: Sink[str], *, deadline: float | None = None) -> list[Outcome]:
    """The outcomes of the items a, b, c and d in one batch; shut down at `deadline` if it is
    given.
    """
    async with Batcher(sink, limits=FOUR) as batcher:
        receipts = [await batcher.submit(item) for item in "abcd"]
        if deadline is None:
            await batcher.flush()
        (await batcher.shutdown(deadline)).verify()
    return [await receipt.settled() for receipt in receipts]


def refused() -> Any:
    return fail(PermanentError("something is wrong with this batch"))


async def test_what_isolate_has_not_told_apart_yet_is_unsent_when_it_is_cut(
    fake_clock: FakeClock,
) -> None:
    """B-T57: the refusal of the whole batch does not concern its good items; they are returned."""
    sink: ScriptedSink[str] = ScriptedSink([refused(), hang()])
    ends = await outcomes(stack(sink, Isolate()), deadline=1.0)
    assert ends == [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.UNSENT, Outcome.UNSENT]


@pytest.mark.parametrize("branched", [False, True])
async def test_a_timeout_around_isolate_buries_no_good_item(
    fake_clock: FakeClock, branched: bool
) -> None:
    """B-T18, B-T57: only the bad one goes to the dead letters."""
    letters: MemorySink[Any] = MemorySink()
    sink: ScriptedSink[str] = ScriptedSink(
        [refused(), hang(), refused(), ok(), refused(), refused(), ok()]
    )
    tower = stack(sink, Isolate(), Timeout(5.0), Retry(backoff=tenacity.wait_fixed(1.0)))
    ends = await outcomes(stack(FanOut(tower) if branched else tower, DeadLetter(letters)))
    assert ["".join(call.items) for call in sink.calls] == [
        "abcd",
        "ab",
        "abcd",
        "ab",
        "cd",
        "c",
        "d",
    ]
    assert ends == [Outcome.DELIVERED, Outcome.DELIVERED, Outcome.DEAD_LETTERED, Outcome.DELIVERED]
    assert [record.item for record in letters.items] == ["c"]


async def test_a_timeout_around_parts_sends_those_again_whose_turn_had_not_come(
    fake_clock: FakeClock,
) -> None:
    """B-T57: they have no known fault, and use up no attempt."""
    sink: ScriptedSink[str] = ScriptedSink([ok(), hang()])
    retry = Retry(attempts=1, backoff=tenacity.wait_fixed(1.0))
    ends = await outcomes(stack(sink, Split(1), Timeout(5.0), retry))
    assert ends == [Outcome.DELIVERED, Outcome.UNKNOWN, Outcome.DELIVERED, Outcome.DELIVERED]
    assert sink.applied == ["a", "c", "d"]


async def test_parts_whose_turn_had_not_come_are_unsent_at_the_deadline(
    fake_clock: FakeClock,
) -> None:
    """B-T57: so are retryable items, but not refused ones."""
    sink: ScriptedSink[str] = ScriptedSink([refused(), fail(), hang()])
    ends = await outcomes(stack(sink, Split(1), Retry()), deadline=1.0)
    assert ends == [Outcome.REJECTED, Outcome.UNSENT, Outcome.UNKNOWN, Outcome.UNSENT]


async def test_a_record_that_a_deaf_target_never_confirmed_is_no_delivery(
    fake_clock: FakeClock,
) -> None:
    """B-T58, B-T59: the item is rejected, although the target stores it later."""
    letters: ScriptedSink[Any] = ScriptedSink([ignore_cancel(20.0)])
    sink: ScriptedSink[str] = ScriptedSink([partial({1: PermanentError("bad")})])
    ends = await outcomes(stack(sink, DeadLetter(stack(letters, Timeout(5.0), Retry()))))
    assert ends == [Outcome.DELIVERED, Outcome.REJECTED, Outcome.DELIVERED, Outcome.DELIVERED]
    assert [record.item for record in letters.applied] == ["b"]


async def test_after_a_cut_that_a_sink_has_swallowed_the_next_part_is_not_sent(
    fake_clock: FakeClock,
) -> None:
    """B-T58: its result before its items have outcomes counts; the remaining items wait for the
    next attempt.
    """
    sink: ScriptedSink[str] = ScriptedSink([ignore_cancel(5.05)])
    ends = await outcomes(
        stack(sink, Split(2), Timeout(5.0), Retry(backoff=tenacity.wait_fixed(1.0)))
    )
    assert ends == [Outcome.DELIVERED] * 4
    assert [call.items for call in sink.calls] == [("a", "b"), ("c", "d")]
    assert [call.started for call in sink.calls] == [0.0, 6.05]


@pytest.mark.parametrize("error", [UnknownOutcomeError("lost"), TransientError("deadlock")])
async def test_a_part_that_was_tried_before_the_cut_has_used_up_its_try(
    fake_clock: FakeClock, error: Exception
) -> None:
    """B-T15, B-T57: it keeps its own error; the guarantee of at most once holds."""
    sink: ScriptedSink[str] = ScriptedSink([fail(error), hang()])
    retry = Retry(attempts=1, resend_unknown=False, backoff=tenacity.wait_fixed(1.0))
    ends = await outcomes(stack(sink, Split(2), Timeout(5.0), retry))
    bad = Outcome.UNKNOWN if isinstance(error, UnknownOutcomeError) else Outcome.REJECTED
    assert ends == [bad, bad, Outcome.UNKNOWN, Outcome.UNKNOWN]
    assert len(sink.calls) == 2
