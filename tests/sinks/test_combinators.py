"""Several sinks, or several items, as one: `FanOut`, `Router`, `Combine`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
import tenacity

from sluicegate import (
    Batch,
    Batcher,
    ConfigError,
    DeadLetter,
    FanOut,
    Limits,
    PermanentError,
    Retry,
    Timeout,
    TransientError,
    UnavailableError,
    stack,
)
from sluicegate.sinks import Combine, MemorySink, Router
from sluicegate.testing import ScriptedSink, fail, hang, ignore_cancel, ok, partial, slow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate import Sink
    from sluicegate.testing import FakeClock

FIXED = tenacity.wait_fixed(1.0)


async def outcomes(
    sink: Sink[Any], items: Iterable[Any] = "abcd", *, deadline: float = 25.0, **limits: Any
) -> list[str]:
    limits.setdefault("max_items", 4)
    async with Batcher(sink, limits=Limits(**limits)) as batcher:
        receipts = [await batcher.submit(item) for item in items]
        await batcher.flush()
        report = await batcher.shutdown(deadline=deadline)
        report.verify()
        return [receipt.outcome.value if receipt.outcome else "?" for receipt in receipts]


# -- FanOut ----------------------------------------------------------------------------------------


async def test_the_worst_branch_wins_per_item(fake_clock: FakeClock) -> None:
    """B-T53: an item that one branch refuses is refused; one that was cut off in any branch is
    unknown.
    """
    one: ScriptedSink[str] = ScriptedSink([partial({1: PermanentError("b")})])
    two: ScriptedSink[str] = ScriptedSink(
        [partial({2: PermanentError("c"), 3: asyncio.CancelledError()})]
    )
    assert await outcomes(FanOut(one, two), "abc") == ["delivered", "rejected", "rejected"]
    assert await outcomes(
        FanOut(ScriptedSink([hang()]), ScriptedSink()), "ab", flush_timeout=2.0
    ) == ["unknown", "unknown"]


async def test_dead_letters_around_a_fan_out(fake_clock: FakeClock) -> None:
    """The record has the branch's own attempts."""
    letters: MemorySink[Any] = MemorySink()
    one: Any = stack(
        ScriptedSink(default=partial({0: TransientError("t")})), Retry(attempts=3, backoff=FIXED)
    )
    assert await outcomes(stack(FanOut(one, ScriptedSink()), DeadLetter(letters)), "ab") == [
        "dead_lettered",
        "delivered",
    ]
    assert (letters.items[0].message, letters.items[0].attempts) == ("t", 3)


async def test_best_effort_never_fails_an_item_and_is_counted(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B-T53: counted per branch, reported once per batch."""
    extra: ScriptedSink[str] = ScriptedSink(default=fail(PermanentError("no")))
    fan = FanOut(ScriptedSink(), best_effort=[extra])
    with caplog.at_level(logging.WARNING):
        async with Batcher(fan, limits=Limits(max_items=2)) as batcher:
            receipts = [await batcher.submit(item) for item in "ab"]
            assert [(await receipt).value for receipt in receipts] == ["delivered", "delivered"]
    counts = {
        label: {outcome.value: number for outcome, number in branch.items()}
        for label, branch in fan.counts.items()
    }
    assert counts == {"1": {"delivered": 2}, "2": {"rejected": 2}}
    assert "best-effort branch 2" in caplog.text


async def test_best_effort_has_one_last_try_when_the_required_ones_are_done(
    fake_clock: FakeClock,
) -> None:
    """design 3.3: its outage does not delay other branches."""
    extra: ScriptedSink[str] = ScriptedSink(default=fail(UnavailableError("down")))
    fan = FanOut(
        stack(ScriptedSink(default=slow(3.0))),
        best_effort=[stack(extra, Retry(backoff=tenacity.wait_fixed(100.0)))],
    )
    async with Batcher(fan, limits=Limits(max_items=2)) as batcher:
        await batcher.add_many(list("ab"))
        assert await batcher.flush()
        assert fake_clock.now() == pytest.approx(3.0)
    assert [call.started for call in extra.calls] == [0.0, 3.0]


@pytest.mark.parametrize(
    ("mode", "calls", "result"),
    [
        ("sequential", [1, 1, 0], "rejected"),
        ("parallel", [1, 1, 1], "unknown"),
        ("all", [1, 1, 1], "rejected"),
    ],
)
async def test_the_modes(fake_clock: FakeClock, mode: Any, calls: list[int], result: str) -> None:
    """B-T27, batcher/B42: the branches that are called and cancelled when one fails as a whole."""
    sinks: list[ScriptedSink[str]] = [
        ScriptedSink(),
        ScriptedSink(default=slow(1.0, fail(PermanentError("no")))),
        ScriptedSink(default=slow(5.0)),
    ]
    assert await outcomes(FanOut(*sinks, mode=mode), "ab") == [result] * 2
    assert [len(sink.calls) for sink in sinks] == calls
    if sinks[2].calls:
        assert sinks[2].calls[0].ended == (1.0 if mode == "parallel" else 5.0)
        assert sinks[2].applied == ([] if mode == "parallel" else ["a", "b"])


async def test_in_sequence_only_what_has_failed_stops(fake_clock: FakeClock) -> None:
    """batcher/B42: per item."""
    first: ScriptedSink[str] = ScriptedSink([partial({1: PermanentError("b")})])
    second: ScriptedSink[str] = ScriptedSink()
    assert await outcomes(FanOut(first, second, mode="sequential"), "abc") == [
        "delivered",
        "rejected",
        "delivered",
    ]
    assert second.applied == ["a", "c"]


async def test_each_branch_backs_off_by_itself(fake_clock: FakeClock) -> None:
    """design 3.3: the slot is held while one branch writes, and released when all of them wait;
    each branch has its own flush timeout.
    """
    flaky: list[Any] = [
        stack(ScriptedSink([fail()] * n), Retry(backoff=tenacity.wait_fixed(4.0))) for n in (1, 2)
    ]
    write: Any = stack(ScriptedSink(default=slow(3.0)), Timeout(4.0))
    fan = FanOut(*flaky, write)
    async with Batcher(fan, limits=Limits(max_items=1, workers=2, flush_timeout=5.0)) as batcher:
        await batcher.add("a")
        await fake_clock.sleep(1.0)
        assert (batcher.tally().in_flight, batcher.tally().backing_off) == (1, 0)
        await fake_clock.sleep(2.5)
        assert (batcher.tally().in_flight, batcher.tally().backing_off) == (0, 1)
        assert await batcher.flush()
    assert fake_clock.now() == pytest.approx(8.0)


async def test_a_deaf_branch(fake_clock: FakeClock) -> None:
    """B-T58: items resolve, the slot stays occupied until the branch ends, no other write uses it,
    and the other branch continues.
    """
    deaf: ScriptedSink[str] = ScriptedSink([ignore_cancel(20.0)])
    other: ScriptedSink[str] = ScriptedSink([slow(2.0)])
    fan = FanOut(stack(deaf, Timeout(1.0)), other)
    async with Batcher(fan, limits=Limits(max_items=2, flush_timeout=60.0)) as batcher:
        first = [await batcher.submit(item) for item in "ab"]
        second = await batcher.submit("c")
        await fake_clock.sleep(2.5)
        assert [receipt.outcome.value if receipt.outcome else None for receipt in first] == [
            "unknown",
            "unknown",
        ]
        assert (len(deaf.calls), other.applied) == (1, ["a", "b"])
        assert second.outcome is None
        await second.settled()
        assert fake_clock.now() == pytest.approx(20.0)
    assert deaf.applied == ["a", "b", "c"]


async def test_a_shutdown_cuts_every_branch(fake_clock: FakeClock) -> None:
    """B-T57: if one branch has the item and the other hangs, it is unknown; if both were only
    waiting, it is unsent and returned.
    """
    assert await outcomes(
        FanOut(ScriptedSink(), ScriptedSink([hang()])), "a", deadline=1.0, max_items=1
    ) == ["unknown"]

    down: list[Any] = [
        stack(ScriptedSink(default=fail(UnavailableError("x"))), Retry()) for _ in range(2)
    ]
    batcher: Batcher[str] = Batcher(FanOut(*down), limits=Limits(max_items=1))
    async with batcher:
        receipt = await batcher.submit("a")
        await fake_clock.sleep(3.0)
        report = await batcher.shutdown(deadline=1.0)
    assert receipt.outcome is not None
    assert (receipt.outcome.value, report.unsent) == ("unsent", ("a",))


async def test_branches_have_write_keys_of_their_own(fake_clock: FakeClock) -> None:
    """B-T39."""
    one, two = ScriptedSink[str](), ScriptedSink[str]()
    await outcomes(FanOut(one, two), "ab")
    assert one.calls[0].write_key != two.calls[0].write_key


def test_a_retry_around_a_fan_out_is_refused() -> None:
    """B-T53: the message shows the right arrangement."""
    shapes: list[Any] = [FanOut(MemorySink()), stack(FanOut(MemorySink()), Timeout(1.0))]
    for inner in shapes:
        with pytest.raises(
            ConfigError, match=r"FanOut\(stack\(a, Retry\(\)\), stack\(b, Retry\(\)\)\)"
        ):
            stack(inner, Retry())


def test_bad_arguments() -> None:
    """Each error names the argument and the rule."""
    with pytest.raises(ConfigError, match="at least one required sink"):
        FanOut()
    with pytest.raises(ConfigError, match="mode='both'"):
        FanOut(MemorySink(), mode="both")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"best_effort=.*must be a list"):
        FanOut(MemorySink(), best_effort=MemorySink())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"routes=.*at least one"):
        Router(str, {})
    with pytest.raises(ConfigError, match="choose=5"):
        Router(5, {"a": MemorySink()})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="merge=3: must be a function"):
        Combine(MemorySink(), key=str, merge=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- Router ----------------------------------------------------------------------------------------


async def test_each_item_goes_its_way_in_order(fake_clock: FakeClock) -> None:
    """An item without a route and one for which `choose` raises fail alone."""
    upper, lower = MemorySink[Any](), MemorySink[Any]()

    def choose(item: Any) -> str:
        return "other" if item == "?" else "upper" if item.isupper() else "lower"

    sink = Router(choose, {"upper": upper, "lower": lower})
    assert await outcomes(sink, ["a", "B", "?", "c", "D", 5], max_items=6) == [
        "delivered",
        "delivered",
        "rejected",
        "delivered",
        "delivered",
        "rejected",
    ]
    assert (upper.items, lower.items) == (["B", "D"], ["a", "c"])
    default = MemorySink[Any]()
    assert await outcomes(Router(choose, {"upper": upper}, default=default), "x?") == [
        "delivered",
        "delivered",
    ]
    assert default.items == ["x", "?"]


async def test_routes_are_written_side_by_side_and_tried_again_apart(fake_clock: FakeClock) -> None:
    """A retry around the router resends only the failed items, on their routes; it knows which may
    have been applied.
    """
    slow_one: ScriptedSink[str] = ScriptedSink(default=slow(3.0))
    seen: list[tuple[tuple[str, ...], frozenset[int]]] = []
    hung = False

    async def cut_first(batch: Batch[str]) -> None:
        nonlocal hung
        seen.append((tuple(batch), batch.maybe_applied))
        if not hung:
            hung = True
            await asyncio.sleep(100)

    sink = stack(
        Router(lambda item: item, {"a": slow_one, "b": stack(cut_first, Timeout(4.0))}),
        Retry(backoff=FIXED),
    )
    assert await outcomes(sink, "abab") == ["delivered"] * 4
    assert slow_one.applied == ["a", "a"]
    assert seen == [(("b", "b"), frozenset()), (("b", "b"), frozenset({0, 1}))]
    assert fake_clock.now() == pytest.approx(5.0)


# -- Combine ---------------------------------------------------------------------------------------


def added(one: tuple[str, int], two: tuple[str, int]) -> tuple[str, int]:
    return one[0], one[1] + two[1]


COUNTS = [("x", 1), ("y", 10), ("x", 2), ("y", 20), ("x", 3), ("z", 7)]


async def test_items_of_one_key_become_one_row(fake_clock: FakeClock) -> None:
    """B-T52, batcher/B52."""
    inner: ScriptedSink[Any] = ScriptedSink()
    assert (
        await outcomes(Combine(inner, key=lambda item: item[0], merge=added), COUNTS, max_items=6)
        == ["delivered"] * 6
    )
    assert inner.applied == [("x", 6), ("y", 30), ("z", 7)]


@pytest.mark.parametrize("outside", [True, False])
async def test_all_take_the_outcome_of_their_row_also_when_it_is_tried_again(
    fake_clock: FakeClock, outside: bool
) -> None:
    """B-T52: retried outside or inside, or dead-lettered; the same row has the same write key."""
    letters: MemorySink[Any] = MemorySink()
    y_fails: Any = partial({1: TransientError("y"), 2: PermanentError("z")})
    inner: ScriptedSink[Any] = ScriptedSink([y_fails, fail(TransientError("y again"))])
    retry = Retry(backoff=FIXED)
    sink: Any
    if outside:
        sink = stack(
            Combine(inner, key=lambda item: item[0], merge=added), retry, DeadLetter(letters)
        )
    else:
        sink = stack(
            Combine(stack(inner, retry), key=lambda item: item[0], merge=added), DeadLetter(letters)
        )
    assert await outcomes(sink, COUNTS, max_items=6) == ["delivered"] * 5 + ["dead_lettered"]
    assert inner.applied == [("x", 6), ("y", 30)]
    assert [call.items for call in inner.calls[1:]] == [(("y", 30),)] * 2
    assert inner.calls[1].write_key == inner.calls[2].write_key
    assert [record.item for record in letters.items] == [("z", 7)]


async def test_a_cut_row_leaves_all_its_items_unknown(fake_clock: FakeClock) -> None:
    """B-T52: conservation holds."""
    inner: ScriptedSink[Any] = ScriptedSink([hang()])
    sink = Combine(inner, key=lambda item: item[0], merge=added)
    assert await outcomes(sink, COUNTS, max_items=6, flush_timeout=2.0) == ["unknown"] * 6


async def test_an_item_without_a_key_fails_alone_and_a_merge_that_raises_fails_its_key(
    fake_clock: FakeClock,
) -> None:
    """Bad data at run time: its neighbours are delivered."""
    inner: ScriptedSink[Any] = ScriptedSink([ok()])
    items = [("x", 1), ([], 1), ("y", "text"), ("y", 2), ("x", 3)]
    sink = Combine(inner, key=lambda item: item[0], merge=added)
    assert await outcomes(sink, items, max_items=5) == [
        "delivered",
        "rejected",
        "rejected",
        "rejected",
        "delivered",
    ]
    assert inner.applied == [("x", 4)]
