"""`Isolate`: finding the bad items of a batch that was refused as a whole, in few writes."""

from __future__ import annotations

import math
from collections import Counter
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
    ErrorClass,
    FanOut,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    RowBatch,
    ThrottledError,
    TransientError,
    UnavailableError,
    WriteResult,
    gather,
    send,
    stack,
)
from sluicegate.sinks import Isolate
from sluicegate.testing import FakeClock, FakeSink, ScriptedSink, fail, ok, partial

SIZE = 1_000


class AllOrNothing:
    """Applies a batch, or refuses all of it because of its bad items without naming them."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad
        self.writes = 0
        self.applied: Counter[int] = Counter()
        self.sent: list[tuple[int, ...]] = []

    async def write(self, batch: Batch[int]) -> None:
        self.writes += 1
        self.sent.append(tuple(batch))
        refused = [item for item in batch if item in self.bad]
        if refused:
            raise PermanentError(f"refused for one of {len(batch)} rows")
        self.applied.update(batch)


def most_writes(items: int, bad: int) -> int:
    """The bound derived at the top of the module."""
    depth = math.ceil(math.log2(items))
    return 1 + 2 * sum(min(1 << level, bad) for level in range(depth))


def test_the_bounds_that_are_promised() -> None:
    assert [most_writes(SIZE, bad) for bad in (1, 3)] == [21, 55]
    assert most_writes(1024, 1024) == 2 * 1024 - 1


def test_one_bad_item_among_a_thousand_wherever_it_is() -> None:
    """batcher/4b.5: at most 21 writes, 999 delivered once, and only the bad one fails."""
    worst = 0
    with FakeClock() as clock:
        for bad in (*range(0, SIZE, 9), SIZE - 1):
            sink = AllOrNothing({bad})
            errors = clock.run(send(stack(sink, Isolate()), RowBatch(range(SIZE))))
            assert list(errors) == [bad]
            assert set(sink.applied.values()) == {1}
            assert len(sink.applied) == SIZE - 1
            worst = max(worst, sink.writes)
    assert worst == 21


@given(st.data())
def test_scattered_bad_items_stay_within_the_bound(data: st.DataObject) -> None:
    """batcher/4b.5: for every number of them; three among a thousand take at most 55 writes."""
    size = data.draw(st.sampled_from([2, 3, 7, 64, 100, SIZE]))
    bad = data.draw(
        st.sets(
            st.integers(0, size - 1), min_size=1, max_size=data.draw(st.sampled_from([1, 3, size]))
        )
    )
    sink = AllOrNothing(bad)
    with FakeClock() as clock:
        errors = clock.run(send(stack(sink, Isolate()), RowBatch(range(size))))
    assert set(errors) == bad
    assert sink.applied == Counter(set(range(size)) - bad)
    assert sink.writes <= most_writes(size, len(bad))


def test_the_bound_for_three_is_reached() -> None:
    sink = AllOrNothing({1, 499, 999})
    with FakeClock() as clock:
        assert len(clock.run(send(stack(sink, Isolate()), RowBatch(range(SIZE))))) == 3
    assert sink.writes <= 55
    sink = AllOrNothing({0, 512, 1023})
    with FakeClock() as clock:
        clock.run(send(stack(sink, Isolate()), RowBatch(range(1024))))
    assert sink.writes == most_writes(1024, 3) == 55


async def test_the_others_keep_their_order_and_the_receipts_tell(fake_clock: FakeClock) -> None:
    sink = AllOrNothing({2, 5})
    async with Batcher(stack(sink, Isolate(), Retry()), limits=Limits(max_items=8)) as batcher:
        receipts = [await batcher.submit(item) for item in range(8)]
        await batcher.flush()
        assert [receipt.outcome for receipt in receipts] == [
            Outcome.REJECTED if item in {2, 5} else Outcome.DELIVERED for item in range(8)
        ]
    assert list(sink.applied) == [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize(
    "error",
    [TransientError("t"), ThrottledError("t"), UnavailableError("u"), ValueError("unlisted")],
    ids=repr,
)
async def test_only_permanent_errors_are_looked_into(
    fake_clock: FakeClock, error: BaseException
) -> None:
    sink = ScriptedSink[int]([fail(error)])
    assert await send(stack(sink, Isolate()), RowBatch(range(4))) == dict.fromkeys(range(4), error)
    assert len(sink.calls) == 1


async def test_an_answer_per_item_is_believed(fake_clock: FakeClock) -> None:
    sink = ScriptedSink[int]([partial({1: PermanentError("a"), 3: PermanentError("b")})])
    assert sorted(await send(stack(sink, Isolate()), RowBatch(range(4)))) == [1, 3]
    assert len(sink.calls) == 1
    each = ScriptedSink[int]([partial({index: PermanentError("bad") for index in range(4)})])
    assert len(await send(stack(each, Isolate()), RowBatch(range(4)))) == 4
    assert len(each.calls) == 1


@pytest.mark.parametrize("bad", [1, 4, 7, 9])
async def test_items_refused_together_are_looked_into_beside_others(
    fake_clock: FakeClock, bad: int
) -> None:
    """A batch in several requests: some are stored, one is refused as a whole, and one item has an
    error of its own.
    """
    applied: list[int] = []

    async def write(batch: Batch[int]) -> WriteResult:
        errors: dict[int, BaseException] = {}
        items = list(batch)
        if 0 in items:
            errors[items.index(0)] = PermanentError("cannot be encoded")
        for start in range(0, len(items), 5):
            request = [i for i in range(len(items))[start : start + 5] if i not in errors]
            if bad in [items[i] for i in request]:
                errors.update(dict.fromkeys(request, PermanentError("400")))
            else:
                applied.extend(items[i] for i in request)
        return WriteResult.failed(batch, errors)

    assert sorted(await send(stack(write, Isolate()), RowBatch(range(10)))) == [0, bad]
    assert sorted(applied) == [item for item in range(10) if item not in {0, bad}]


async def test_items_refused_together_wait_for_a_destination_that_is_away(
    fake_clock: FakeClock,
) -> None:
    """One of two requests is refused, and the other one meets an outage: both are tried again."""
    refused, away = PermanentError("400"), UnavailableError("503")
    steps: list[Any] = [partial({0: refused, 1: refused, 2: away, 3: away})]
    sink = ScriptedSink[int](steps)
    assert await send(stack(sink, Isolate()), RowBatch(range(4))) == dict.fromkeys(range(4), away)
    assert len(sink.calls) == 1


async def test_a_lone_item_is_not_written_twice(fake_clock: FakeClock) -> None:
    sink = AllOrNothing({0})
    assert len(await send(stack(sink, Isolate()), RowBatch([0]))) == 1
    assert sink.writes == 1


async def test_a_part_that_may_be_tried_again_is_and_the_settled_ones_are_not(
    fake_clock: FakeClock,
) -> None:
    """B-T41: bisection, a deadlock in the first half, and a retry around it."""
    steps: list[Any] = [fail(PermanentError("one of four")), fail(TransientError("deadlock")), ok()]
    sink = ScriptedSink[int](steps)
    errors = await send(
        stack(sink, Isolate(), Retry(backoff=tenacity.wait_fixed(1.0))), RowBatch(range(4))
    )
    assert errors == {}
    assert [call.items for call in sink.calls] == [(0, 1, 2, 3), (0, 1), (2, 3), (0, 1)]


@pytest.mark.parametrize(
    "error", [UnavailableError("gone"), ThrottledError("slow down", retry_after=3.0)], ids=repr
)
async def test_a_destination_that_is_away_is_not_asked_about_the_rest(
    fake_clock: FakeClock, error: BaseException
) -> None:
    sink = ScriptedSink[int]([fail(PermanentError("one of four")), fail(error)])
    assert await send(stack(sink, Isolate()), RowBatch(range(4))) == dict.fromkeys(range(4), error)
    assert len(sink.calls) == 2


async def test_the_users_classifier_is_asked_first(fake_clock: FakeClock) -> None:
    sink = ScriptedSink[int]([fail(ValueError("bad row"))])
    isolated = stack(
        sink,
        Isolate(
            classify=lambda error: ErrorClass.PERMANENT if isinstance(error, ValueError) else None
        ),
    )
    assert await send(isolated, RowBatch(range(4))) == {}
    assert len(sink.calls) == 3


async def test_each_part_has_a_write_key_of_its_own(fake_clock: FakeClock) -> None:
    """B-T39: a deduplicating destination does not confuse the parts."""
    sink = ScriptedSink[int]([fail(PermanentError("one of four"))])
    await send(stack(sink, Isolate()), RowBatch(range(4)))
    assert len({call.write_key for call in sink.calls}) == 3


def test_it_takes_back_the_promise_about_keys_only() -> None:
    class Promising(FakeSink[Any]):
        capabilities = Capabilities(key_prefix_safe=True, idempotent=True, max_concurrency=3)

    made: Any = stack(Promising(), Isolate())
    assert made.capabilities == Capabilities(idempotent=True, max_concurrency=3)


@pytest.mark.parametrize(("arguments", "message"), [({"classify": 1}, "classify=1")])
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    """B-T30."""
    with pytest.raises(ConfigError, match=message):
        Isolate(**arguments)


async def test_workers_isolate_side_by_side(fake_clock: FakeClock) -> None:
    sink = AllOrNothing({7, 77, 177})

    async def slowly(batch: Batch[int]) -> WriteResult | None:
        await fake_clock.sleep(0.1)
        await sink.write(batch)
        return None

    async with Batcher(stack(slowly, Isolate()), limits=Limits(max_items=50, workers=4)) as batcher:
        receipts = [await batcher.submit(item) for item in range(200)]
        await batcher.flush()
        assert batcher.tally().rejected == 3
        assert await gather([r for r in receipts if r.outcome is Outcome.DELIVERED])
    assert sink.applied == Counter(set(range(200)) - sink.bad)


def test_around_a_fan_out_it_is_refused() -> None:
    """A branch that has already applied a part would receive it again."""
    sink: FanOut[int] = FanOut(FakeSink[int](), FakeSink[int]())
    with pytest.raises(ConfigError, match=r"Isolate around.*in each branch"):
        stack(sink, Isolate())
