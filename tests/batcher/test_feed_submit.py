"""`Feed.submit`: many items with the caller's receipts, as capacity allows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from feed_help import (
    Row,
    Slip,
    Told,
    is_empty,
    key_of,
    of_claim,
    on_virtual_time,
    outcomes,
    rows_of,
    slips_for,
    steps,
    tenant_of,
)

from sluicegate import Batcher, ClosedError, Limits, PermanentError
from sluicegate.batcher import Tenants
from sluicegate.errors import ItemTooLarge, KeyFailedError, WithdrawnError
from sluicegate.testing import FakeClock

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"key": key_of},
    "bytes": {"size_of": lambda _: 10, "pending_bytes": 45},
    "tenants": {"tenant": tenant_of},
    "capped tenants": {"tenant": tenant_of, "tenants": Tenants(max_pending_items=3)},
}
shapes = pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)


def batcher_of(sink: Any, clock: FakeClock, options: dict[str, Any], most: int = 5) -> Batcher[Row]:
    given = dict(options)
    limits = Limits(
        max_items=2,
        max_delay=1.0,
        workers=1,
        max_pending_items=most,
        max_pending_bytes=given.pop("pending_bytes", None),
    )
    return Batcher(sink, limits=limits, clock=clock, **given)


@shapes
def test_a_group_larger_than_the_ledger_goes_in_in_order_in_pieces(options: dict[str, Any]) -> None:
    async def main(clock: FakeClock) -> None:
        sink = Told(*[0.1] * 100)
        rows = rows_of("c", *"abcdefghij" * 3)
        slips = slips_for(rows)
        most = 0
        async with batcher_of(sink, clock, options) as batcher:
            feed = batcher.feed()
            submission = feed.submit(rows, slips)
            task = asyncio.ensure_future(submission)
            while not task.done():
                most = max(most, batcher.tally().inside)
                await clock.sleep(0.05)
            assert await task == []
            assert submission.taken == 30
        assert most <= 5
        assert outcomes(slips) == [["delivered"]] * 30
        assert sink.applied == rows

    on_virtual_time(main)


def test_rows_may_share_a_receipt() -> None:
    async def main(clock: FakeClock) -> None:
        slip = Slip("c")
        async with batcher_of(Told(), clock, {"key": key_of}) as batcher:
            await batcher.feed().submit(rows_of("c", *"aab"), [slip] * 3)
        assert outcomes([slip]) == [["delivered"] * 3]

    on_virtual_time(main)


def test_a_receipt_may_be_false() -> None:
    class False_(Slip):
        def __bool__(self) -> bool:
            return False

    async def main(clock: FakeClock) -> None:
        slips = [False_("c") for _ in range(4)]
        async with batcher_of(Told(), clock, {"key": key_of}) as batcher:
            await batcher.feed().submit(rows_of("c", *"aaaa"), slips)
            await batcher.flush()
            assert outcomes(slips) == [["delivered"]] * 4

    on_virtual_time(main)


def test_held_keys_that_fill_the_ledger_block_only_while_they_do() -> None:
    async def main(clock: FakeClock) -> None:
        sink = Told(PermanentError("no"))
        rows = rows_of("c", *"aaaaa")
        slips = slips_for(rows)
        async with batcher_of(sink, clock, {"key": key_of, "on_key_failure": "pause"}) as batcher:
            feed = batcher.feed()
            await feed.submit(rows, slips)
            await clock.sleep(1.5)
            more = rows_of("c", *"bcdefg")
            await asyncio.wait_for(feed.submit(more, slips_for(more)), 50)
            assert batcher.resume("a") == 4

    on_virtual_time(main)


def test_a_refused_item_affects_no_other() -> None:
    def key(row: Row) -> Any:
        if row.key == "bad":
            raise LookupError(row)
        return [1] if row.key == "odd" else row.key

    def size_of(row: Row) -> int:
        return 1000 if row.key == "big" else 1

    async def main(clock: FakeClock) -> None:
        sink = Told()
        options = {
            "key": key, "size_of": size_of, "pending_bytes": 100, "on_key_failure": "fail",
        }  # fmt: skip
        async with batcher_of(sink, clock, options) as batcher:
            feed = batcher.feed()
            sink.answers = [PermanentError("no")]
            await feed.submit(rows_of("c", "failed"), [Slip("c")])
            await clock.sleep(1.5)
            rows = rows_of("c", "a", "bad", "b", "odd", "big", "failed", "a")
            slips = slips_for(rows)
            refused = await feed.submit(rows, slips)
            assert [(index, type(error)) for index, error in refused] == [
                (1, LookupError),
                (3, TypeError),
                (4, ItemTooLarge),
                (5, KeyFailedError),
            ]
            await batcher.flush()
            assert outcomes(slips) == [["delivered"], [], ["delivered"], [], [], [], ["delivered"]]
            assert batcher.tally().refused == 4

    on_virtual_time(main)


def test_a_cancelled_submission_tells_what_was_accepted_and_goes_on_when_awaited_again() -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        rows = rows_of("c", *"abcdefgh")
        slips = slips_for(rows)
        async with batcher_of(Told(event), clock, {"key": key_of}) as batcher:
            submission = batcher.feed().submit(rows, slips)
            task = asyncio.ensure_future(submission)
            await clock.sleep(2)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert submission.taken == batcher.tally().accepted == 5
            event.set()
            await steps()
            assert submission.taken == batcher.tally().accepted == 5
            assert await submission == []
            assert submission.taken == batcher.tally().accepted == 8
        assert outcomes(slips) == [["delivered"]] * 8

    on_virtual_time(main)


def test_a_submission_that_waits_when_the_batcher_closes_raises() -> None:
    async def main(clock: FakeClock) -> None:
        rows = rows_of("c", *"abcdefgh")
        batcher = batcher_of(Told(0.5), clock, {"key": key_of})
        async with batcher:
            submission = batcher.feed().submit(rows, slips_for(rows))
            task = asyncio.ensure_future(submission)
            await clock.sleep(0.1)
            await batcher.shutdown()
            with pytest.raises(ClosedError):
                await task
            assert submission.taken == batcher.tally().accepted
        with pytest.raises(ClosedError):
            await submission

    on_virtual_time(main)


@shapes
@pytest.mark.parametrize("granted", [False, True])
def test_waiting_items_are_turned_away_by_a_withdrawal(
    options: dict[str, Any], granted: bool
) -> None:
    async def main(clock: FakeClock) -> None:
        event = asyncio.Event()
        sink = Told(event)
        rows = [*rows_of("kept", *"abc"), *rows_of("lost", *"defg"), *rows_of("kept", *"hi")]
        if options.get("tenant"):
            rows = [row._replace(claim="t") for row in rows]
        slips = [Slip("lost" if 3 <= index < 7 else "kept") for index in range(9)]
        async with batcher_of(sink, clock, options) as batcher:
            feed = batcher.feed()
            submission = feed.submit(rows, slips)
            task = asyncio.ensure_future(submission)
            await clock.sleep(2)
            taken = submission.taken
            assert 3 <= taken < 7
            if granted:
                event.set()
                for _ in range(20):
                    await asyncio.sleep(0)
                    if batcher._dispatcher.producers.any_granted:
                        break
                else:
                    pytest.fail("no room was granted")
            assert feed.withdraw(of_claim("lost")) <= taken
            event.set()
            await steps()
            await clock.sleep(3)
            refused = await task
            assert [index for index, _ in refused] == list(range(taken, 7))
            assert all(isinstance(error, WithdrawnError) for _, error in refused)
            await batcher.flush()
            assert is_empty(batcher)
        ended = [["delivered"]] * 3 + [["unsent"]] * (taken - 3) + [[]] * (7 - taken)
        assert outcomes(slips) == [*ended, ["delivered"], ["delivered"]]
        assert [row.key for row in sink.applied] == list("abchi")

    on_virtual_time(main)


def test_a_wholly_withdrawn_submission_ends_at_once() -> None:
    async def main(clock: FakeClock) -> None:
        rows = rows_of("lost", *"abcdefgh")
        slips = slips_for(rows)
        async with batcher_of(Told(asyncio.Event(), asyncio.Event()), clock, {}) as batcher:
            feed = batcher.feed()
            task = asyncio.ensure_future(feed.submit(rows, slips))
            await clock.sleep(2)
            feed.withdraw(of_claim("lost"))
            await steps(3)
            assert task.done()
            assert [index for index, _ in task.result()] == [5, 6, 7]
            await batcher.shutdown(1)
        batcher.tally().verify()

    on_virtual_time(main)


def test_items_and_receipts_must_be_as_many() -> None:
    async def main(clock: FakeClock) -> None:
        async with batcher_of(Told(), clock, {}) as batcher:
            with pytest.raises(ValueError, match="2 items with 1 receipts"):
                batcher.feed().submit(rows_of("c", *"ab"), [Slip("c")])

    on_virtual_time(main)
