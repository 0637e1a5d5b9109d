"""`Split`: parts within the limit, and results at the right indices."""

from __future__ import annotations

from typing import Any

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import (
    Batch,
    Batcher,
    Capabilities,
    ConfigError,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    RowBatch,
    ThrottledError,
    TransientError,
    UnavailableError,
    WriteResult,
    send,
    stack,
)
from sluicegate.sinks import Split
from sluicegate.testing import FakeClock, FakeSink, ScriptedSink, fail, ok, partial


async def test_parts_of_at_most_so_many_items(fake_clock: FakeClock) -> None:
    sink = FakeSink[int]()
    assert await send(stack(sink, Split(4)), RowBatch(range(10))) == {}
    assert [call.items for call in sink.calls] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]


async def test_a_batch_that_fits_is_passed_on_as_it_is(fake_clock: FakeClock) -> None:
    seen: list[Batch[Any]] = []

    async def write(batch: Batch[Any]) -> None:
        seen.append(batch)

    batch = RowBatch([b"ab", b"cd"])
    await send(stack(write, Split(2, max_bytes=4)), batch)
    assert seen == [batch]
    assert seen[0] is batch


async def test_parts_of_at_most_so_many_bytes_and_a_large_item_alone(fake_clock: FakeClock) -> None:
    sink = FakeSink[bytes]()
    items = [b"aaa", b"bb", b"c", b"dddddddd", b"e", b""]
    assert await send(stack(sink, Split(max_bytes=5)), RowBatch(items)) == {}
    assert [call.items for call in sink.calls] == [
        (b"aaa", b"bb"),
        (b"c",),
        (b"dddddddd",),
        (b"e", b""),
    ]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.integers(1, 7), st.integers(1, 20))
def test_nothing_is_lost_or_doubled_and_every_limit_holds(
    sizes: list[int], max_items: int, max_bytes: int
) -> None:
    sink = FakeSink[bytes]()
    items = [bytes([number]) * size for number, size in enumerate(sizes)]
    with FakeClock() as clock:
        split = stack(sink, Split(max_items, max_bytes=max_bytes))
        assert clock.run(send(split, RowBatch(items))) == {}
    assert sink.applied == items
    for call in sink.calls:
        assert len(call.items) <= max_items
        assert len(call.items) == 1 or sum(map(len, call.items)) <= max_bytes


async def test_answers_are_mapped_back(fake_clock: FakeClock) -> None:
    errors = [PermanentError("a"), TransientError("b")]
    sink = ScriptedSink[int]([ok(), partial({1: errors[0]}), fail(errors[1])])
    assert await send(stack(sink, Split(3)), RowBatch(range(8))) == {
        4: errors[0],
        6: errors[1],
        7: errors[1],
    }


async def test_details_reach_their_receipts(fake_clock: FakeClock) -> None:
    async def write(batch: Batch[int]) -> WriteResult:
        return WriteResult.from_outcomes(
            batch, [None] * len(batch), details={i: f"row {batch[i]}" for i in range(len(batch))}
        )

    async with Batcher(stack(write, Split(2)), limits=Limits(max_items=5)) as batcher:
        receipts = [await batcher.submit(item) for item in range(5)]
        assert await receipts[4] is Outcome.DELIVERED
        assert [receipt.detail for receipt in receipts] == [f"row {item}" for item in range(5)]


@pytest.mark.parametrize(
    "error",
    [UnavailableError("gone"), ThrottledError("slow down"), ConnectionRefusedError()],
    ids=repr,
)
async def test_a_destination_that_is_away_is_not_asked_about_the_rest(
    fake_clock: FakeClock, error: BaseException
) -> None:
    sink = ScriptedSink[int]([ok(), fail(error)])
    assert await send(stack(sink, Split(2)), RowBatch(range(8))) == dict.fromkeys(
        range(2, 8), error
    )
    assert len(sink.calls) == 2


async def test_only_the_failed_part_is_sent_again(fake_clock: FakeClock) -> None:
    """B-T18, B-T41."""
    sink = ScriptedSink[int]([ok(), fail(TransientError("t"))])
    assert (
        await send(
            stack(sink, Split(2), Retry(backoff=tenacity.wait_fixed(1.0))), RowBatch(range(6))
        )
        == {}
    )
    assert [call.items for call in sink.calls] == [(0, 1), (2, 3), (4, 5), (2, 3)]


async def test_the_batchers_measure_is_used(fake_clock: FakeClock) -> None:
    sink = FakeSink[str]()
    limits = Limits(max_items=4, max_bytes=1_000)
    async with Batcher(stack(sink, Split(max_bytes=6)), limits=limits, size_of=len) as batcher:
        await batcher.add_many(["aaa", "bbb", "cccc", "dd"])
    assert [call.items for call in sink.calls] == [("aaa", "bbb"), ("cccc", "dd")]


async def test_an_item_that_cannot_be_measured_fails_alone(fake_clock: FakeClock) -> None:
    sink = FakeSink[Any]()
    errors = await send(stack(sink, Split(max_bytes=3)), RowBatch([b"aa", "text", b"b", b"c"]))
    assert list(errors) == [1]
    assert isinstance(errors[1], PermanentError)
    assert "size_of=" in str(errors[1])
    assert sink.applied == [b"aa", b"b", b"c"]
    assert len(sink.calls) == 2


def test_it_takes_back_the_promise_about_keys_only() -> None:
    class Promising(FakeSink[Any]):
        capabilities = Capabilities(key_prefix_safe=True, transactional=True)

    made: Any = stack(Promising(), Split(2))
    assert made.capabilities == Capabilities(transactional=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "max_items=None: must be given, or max_bytes"),
        ({"max_items": 0}, "max_items=0"),
        ({"max_bytes": -1}, "max_bytes=-1"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    """B-T30."""
    with pytest.raises(ConfigError, match=message):
        Split(**arguments)
