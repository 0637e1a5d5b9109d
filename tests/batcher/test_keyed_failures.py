"""The state of a key after one of its items has failed permanently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from keyed_help import Destination, Item, Setting, key_of, on_virtual_time, some

from sluicegate import (
    Backoff,
    Batcher,
    BlockingBatcher,
    ConfigError,
    ItemFailed,
    Limits,
    Outcome,
    Retry,
    TransientError,
    stack,
)
from sluicegate.errors import KeyFailedError

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock

LIMITS = Limits(max_items=10, max_delay=1.0, workers=4, max_pending_items=100)
IN_THREADS = Limits(max_items=10, max_delay=0.001, workers=4)


@pytest.mark.parametrize("prefix_safe", [False, True])
def test_skip_goes_on_with_the_next(*, prefix_safe: bool) -> None:
    """batcher/4a.10: items behind the bad one in its batch are delivered after it, in order."""
    setting = Setting(Item("a", 1), Item("a", 3), prefix_safe=prefix_safe)

    async def main(clock: FakeClock) -> None:
        async with Batcher(setting.stack, key=key_of, limits=LIMITS, clock=clock) as batcher:
            receipts = [await batcher.submit(item) for item in some("a", 0, 6)]
            await batcher.add_many(some("b", 0, 3))
            await clock.advance(20.0)
            ends = [receipt.outcome for receipt in receipts]
            assert ends == [
                Outcome.DELIVERED,
                Outcome.DEAD_LETTERED,
                Outcome.DELIVERED,
                Outcome.DEAD_LETTERED,
                *[Outcome.DELIVERED] * 2,
            ]

    on_virtual_time(main)
    assert setting.sink.applied == {"a": [0, 2, 4, 5], "b": [0, 1, 2]}
    assert setting.buried == [1, 3]
    assert not setting.sink.broken


@pytest.mark.parametrize("prefix_safe", [False, True])
@pytest.mark.parametrize("dead_letters", [False, True])
def test_pause_holds_the_key_until_it_is_resumed(*, prefix_safe: bool, dead_letters: bool) -> None:
    """batcher/4a.10: whether the item was dead-lettered or rejected, and including later items of
    its batch; other keys continue.
    """
    setting = Setting(Item("a", 1), prefix_safe=prefix_safe, dead_letters=dead_letters)

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            setting.stack, key=key_of, limits=LIMITS, on_key_failure="pause", clock=clock
        ) as batcher:
            await batcher.add_many([*some("a", 0, 4), *some("b", 0, 3)])
            await clock.advance(20.0)
            assert setting.sink.applied == {"a": [0], "b": [0, 1, 2]}
            await batcher.add_many([*some("a", 4, 6), *some("b", 3, 4)])
            await clock.advance(20.0)
            assert setting.sink.applied == {"a": [0], "b": [0, 1, 2, 3]}
            stats = batcher.stats()
            assert (stats.held_keys, stats.held_items) == (1, 4)
            assert not await batcher.flush(), (
                "no flush waits for what is held, and none says that it is done"
            )
            assert batcher.resume("b") == 0
            assert batcher.resume("a") == 4
            await clock.advance(20.0)
            assert setting.sink.applied["a"] == [0, 2, 3, 4, 5]
            assert batcher.stats().held_keys == 0
            assert await batcher.flush()
        assert not batcher._dispatcher.gathering.gatherer.active  # type: ignore[attr-defined]

    on_virtual_time(main)
    assert not setting.sink.broken


def test_a_paused_key_without_items_is_remembered() -> None:
    """batcher/4a.10."""
    setting = Setting(Item("a", 0))

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            setting.stack, key=key_of, limits=LIMITS, on_key_failure="pause", clock=clock
        ) as batcher:
            await batcher.add(Item("a", 0))
            await clock.advance(5.0)
            await batcher.add(Item("a", 1))
            await clock.advance(5.0)
            assert not setting.sink.applied
            assert batcher.resume("a") == 1
            await clock.advance(5.0)
            assert setting.sink.applied["a"] == [1]

    on_virtual_time(main)


def test_park_holds_so_many_and_spills_the_oldest_in_order() -> None:
    """batcher/4a.10, consumer/C:N4: the earlier items become dead letters, the later ones stay in
    the ledger; unparking continues with those.
    """
    setting = Setting(Item("a", 0))

    async def main(clock: FakeClock) -> None:
        options: dict[str, Any] = {"on_key_failure": "park", "max_parked_items": 5}
        async with Batcher(
            setting.stack, key=key_of, limits=LIMITS, clock=clock, **options
        ) as batcher:
            receipts = [await batcher.submit(item) for item in some("a", 0, 30)]
            await batcher.add_many(some("b", 0, 3))
            await clock.advance(20.0)
            assert setting.sink.applied == {"b": [0, 1, 2]}
            assert setting.buried == list(range(25))
            assert setting.most_letters_at_once == 1
            assert {letter.error_type for letter in setting.letters[1:]} == {"ParkedBehind"}
            assert [letter.parked_behind for letter in setting.letters] == [False] + [True] * 24
            assert {letter.item_key for letter in setting.letters} == {"a"}
            assert {receipt.outcome for receipt in receipts[:25]} == {Outcome.DEAD_LETTERED}
            assert batcher.stats().held_items == 5
            await batcher.add(Item("a", 30))
            await clock.advance(20.0)
            assert setting.buried[25:] == [25]
            assert batcher.unpark("a") == 5
            await batcher.add(Item("a", 31))
            await clock.advance(20.0)
            assert setting.sink.applied["a"] == [26, 27, 28, 29, 30, 31]

    on_virtual_time(main)
    assert not setting.sink.broken


@pytest.mark.parametrize("policy", ["park", "pause"])
def test_a_flush_does_not_wait_for_what_went_back_out_of_its_own_batch(policy: Any) -> None:
    """batcher/4b.1: all items of a key were in one batch; those behind the bad one are held now,
    and `flush` says so.
    """
    setting = Setting(Item("a", 1), prefix_safe=True)

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            setting.stack, key=key_of, on_key_failure=policy, limits=LIMITS, clock=clock
        ) as batcher:
            await batcher.add_many([Item(key, number) for number in range(3) for key in "ab"])
            report = await batcher.flush(timeout=50.0)
            assert clock.now() < 1.0
            assert (report.remaining, sum(report.outcomes.values())) == (1, 5)
            (batcher.unpark if policy == "park" else batcher.resume)("a")
            assert (await batcher.flush(timeout=50.0)).remaining == 0
        assert clock.now() < 1.0
        assert setting.sink.applied["a"] == [0, 2]

    on_virtual_time(main)


def test_a_parked_key_never_holds_more_than_it_may_for_long() -> None:
    """I6: for any arrivals, and any duration."""
    setting = Setting(Item("a", 0))

    async def main(clock: FakeClock) -> None:
        options: dict[str, Any] = {"on_key_failure": "park", "max_parked_items": 3}
        async with Batcher(
            setting.stack, key=key_of, limits=LIMITS, clock=clock, **options
        ) as batcher:
            for item in some("a", 0, 500):
                await batcher.add(item)
                assert batcher.tally().inside <= 100
                if item.number % 50 == 49:
                    await clock.advance(30.0)
                    assert batcher.stats().held_items == 3
            assert setting.buried == list(range(497))

    with pytest.raises(Exception, match="3 unsent"):
        on_virtual_time(main)


def test_a_key_that_is_unparked_while_it_spills_waits_for_the_spill() -> None:
    """I5: a key is never in a write to the dead letters and in one to the destination at the same
    time.
    """
    setting = Setting(Item("a", 0))

    async def main(clock: FakeClock) -> None:
        options: dict[str, Any] = {"on_key_failure": "park", "max_parked_items": 1}
        async with Batcher(
            setting.stack, key=key_of, limits=LIMITS, clock=clock, **options
        ) as batcher:
            await batcher.add_many(some("a", 0, 4))
            await clock.advance(1.25)
            assert setting.buried == [0]
            assert batcher.unpark("a") == 1
            await clock.advance(0.05)
            assert not setting.sink.applied
            await clock.advance(20.0)
            assert setting.buried == [0, 1, 2]
            assert setting.sink.applied["a"] == [3]

    on_virtual_time(main)


@pytest.mark.parametrize("prefix_safe", [False, True])
def test_fail_rejects_what_comes_after(*, prefix_safe: bool) -> None:
    """batcher/4a.10: pending items end rejected, and later ones are refused, until the key is
    resumed.
    """
    setting = Setting(Item("a", 1), prefix_safe=prefix_safe)

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            setting.stack, key=key_of, limits=LIMITS, on_key_failure="fail", clock=clock
        ) as batcher:
            receipts = [await batcher.submit(item) for item in some("a", 0, 4)]
            await batcher.add(Item("b", 0))
            await clock.advance(20.0)
            assert [receipt.outcome for receipt in receipts] == [
                Outcome.DELIVERED, Outcome.DEAD_LETTERED, Outcome.REJECTED, Outcome.REJECTED,
            ]  # fmt: skip
            with pytest.raises(ItemFailed, match="an earlier item of its key has failed"):
                await receipts[3]
            for add in (batcher.add, batcher.submit):
                with pytest.raises(KeyFailedError, match="'a' has failed"):
                    await add(Item("a", 4))
            assert not batcher.try_add(Item("a", 4))
            assert batcher.tally().refused == 3
            assert await batcher.flush()
            assert batcher.resume("a") == 0
            await batcher.add(Item("a", 5))
            await clock.advance(20.0)
            assert setting.sink.applied == {"a": [0, 5], "b": [0]}

    on_virtual_time(main)
    assert not setting.sink.broken


@pytest.mark.parametrize("policy", ["pause", "park", "fail"])
def test_what_is_held_is_handed_back_by_a_shutdown(policy: Any) -> None:
    """batcher/4b.1: at once, in order, and counted."""
    setting = Setting(Item("a", 0))

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            setting.stack, key=key_of, limits=LIMITS, on_key_failure=policy, clock=clock
        ) as batcher:
            await batcher.add(Item("a", 0))
            if policy != "fail":
                await clock.advance(5.0)
            await batcher.add_many(some("a", 1, 4))
            report = await batcher.shutdown()
            assert report.unsent == tuple(some("a", 1, 4))
            assert report.parked == 3
            assert not report.complete
            assert report.seconds <= 0.5
            report.verify()

    on_virtual_time(main)


def test_what_waits_behind_an_item_that_is_handed_back_is_not_parked() -> None:
    """batcher/4b.1: no item has failed permanently."""

    async def refuse(sink: Destination, batch: Batch[Item]) -> None:
        raise TransientError("not now")

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            stack(Destination(refuse), Retry(backoff=Backoff(base=100.0, jitter="none"))),
            key=key_of,
            limits=LIMITS,
            clock=clock,
        ) as batcher:
            await batcher.add_many(some("a", 0, 5))
            await clock.advance(1.0)
            report = await batcher.shutdown()
            assert report.unsent == tuple(some("a", 0, 5))
            assert report.parked == 0

    on_virtual_time(main)


def test_threads_let_keys_go() -> None:
    """batcher/4a.10: `BlockingBatcher` has the same methods."""
    setting = Setting(Item("a", 0), seconds=0.0)
    with BlockingBatcher(
        setting.stack, key=key_of, limits=IN_THREADS, on_key_failure="park"
    ) as batcher:
        receipts = [batcher.submit(item) for item in some("a", 0, 3)]
        assert receipts[0].settled() is Outcome.DEAD_LETTERED
        batcher.flush()
        assert batcher.unpark("a") == 2
        assert receipts[2].result() is Outcome.DELIVERED
        with pytest.raises(ConfigError, match=r"resume\(\) needs one of pause, fail"):
            batcher.resume("a")
    assert setting.sink.applied["a"] == [1, 2]


def test_threads_are_told_that_a_key_has_failed() -> None:
    """batcher/4a.10: the same as on the loop, and the refusal is counted."""
    setting = Setting(Item("a", 0), seconds=0.0)
    with BlockingBatcher(
        setting.stack, key=key_of, limits=IN_THREADS, on_key_failure="fail"
    ) as batcher:
        assert batcher.submit(Item("a", 0)).settled() is Outcome.DEAD_LETTERED
        batcher.flush()
        with pytest.raises(KeyFailedError):
            batcher.add(Item("a", 1))
        assert not batcher.try_add(Item("a", 1))
        assert batcher.tally().refused == 2
        assert batcher.resume("a") == 0
        assert batcher.deliver(Item("a", 2)) is Outcome.DELIVERED


@pytest.mark.parametrize("kind", [Batcher, BlockingBatcher])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_key_failure": "pause"}, "has no effect without key="),
        ({"on_key_failure": "stop", "key": key_of}, "'skip'"),
        ({"max_parked_items": 3, "key": key_of}, "has no effect without on_key_failure='park'"),
        ({"on_key_failure": "park", "key": key_of}, "needs a DeadLetter"),
        ({"on_key_failure": "park", "max_parked_items": 0, "key": key_of}, "max_parked_items=0"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(
    kind: Any, options: dict[str, Any], message: str
) -> None:
    """batcher/B46."""
    sink = Destination() if "needs" in message else Setting().stack
    with pytest.raises(ConfigError, match=message):
        kind(sink, **options)
