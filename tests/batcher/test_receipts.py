"""Receipts: one awaitable per item."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from helpers import Gated, Recording
from sluicegate import (
    AddTimeout,
    Batch,
    Batcher,
    BlockingBatcher,
    DeadLetter,
    ItemFailed,
    Limits,
    Outcome,
    PermanentError,
    UnknownOutcomeError,
    WriteResult,
    gather,
    stack,
)
from sluicegate.errors import DeliverTimeout, StoppedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sluicegate import Receipt
    from sluicegate.testing import FakeClock


async def test_a_receipt_gives_the_items_outcome(fake_clock: FakeClock) -> None:
    """batcher/B54."""
    async with Batcher(Recording()) as batcher:
        receipt = await batcher.submit("a")
        assert not receipt.done
        assert await receipt is Outcome.DELIVERED
        assert await receipt is Outcome.DELIVERED
        assert await batcher.deliver("b") is Outcome.DELIVERED


async def test_each_await_of_a_failed_receipt_raises_an_error_of_its_own(
    fake_clock: FakeClock,
) -> None:
    """With the cause of that item."""

    def answer(batch: Batch[Any]) -> WriteResult:
        return WriteResult.failed(batch, {1: PermanentError("bad row")})

    async with Batcher(Recording(answer=answer)) as batcher:
        receipts = [await batcher.submit(i) for i in range(3)]
        with pytest.raises(ItemFailed, match="bad row"):
            await gather(iter(receipts))
        ends = [receipt.outcome for receipt in receipts]
        assert ends == [Outcome.DELIVERED, Outcome.REJECTED, Outcome.DELIVERED]
        errors: list[ItemFailed] = []
        for _ in range(2):
            with pytest.raises(ItemFailed, match="bad row") as caught:
                await receipts[1]
            errors.append(caught.value)
        assert errors[0] is not errors[1]
        assert isinstance(errors[0].__cause__, PermanentError)


async def test_details_reach_the_receipt(fake_clock: FakeClock) -> None:
    """design 3.2: a returned row, an offset, an id."""

    def answer(batch: Batch[Any]) -> WriteResult:
        return WriteResult.from_outcomes(
            batch, [None, Outcome.DUPLICATE], details={0: "id-7", 1: "id-8"}
        )

    async with Batcher(Recording(answer=answer)) as batcher:
        first, second = await batcher.submit("a"), await batcher.submit("b")
        assert [await first, await second] == [Outcome.DELIVERED, Outcome.DUPLICATE]
        assert (first.detail, second.detail) == ("id-7", "id-8")


async def test_cancelling_one_waiter_touches_nobody_else(fake_clock: FakeClock) -> None:
    """A receipt is not a future."""
    sink = Gated()
    async with Batcher(sink, limits=Limits(max_items=1)) as batcher:
        receipt = await batcher.submit("a")

        async def wait() -> Outcome:
            return await receipt

        first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
        await fake_clock.run_until_idle()
        first.cancel()
        sink.gate.set()
        assert await second is Outcome.DELIVERED
        assert first.cancelled()


async def test_a_cancelled_deliver_leaves_the_item_on_its_way(fake_clock: FakeClock) -> None:
    """B-T32: a producer's cancellation never cancels a write that contains other items."""
    sink = Gated()
    async with Batcher(sink, limits=Limits(max_items=2)) as batcher:
        first = asyncio.create_task(batcher.deliver("a"))
        second = asyncio.create_task(batcher.deliver("b"))
        await fake_clock.run_until_idle()
        assert sink.calls == 1
        first.cancel()
        sink.gate.set()
        assert await second is Outcome.DELIVERED
    assert sink.items == ["a", "b"]


async def test_receipts_of_items_that_were_never_sent_say_so(fake_clock: FakeClock) -> None:
    """B-T35, for shutdowns: every receipt resolves."""
    sink = Gated()
    async with Batcher(sink, limits=Limits(max_items=1)) as batcher:
        receipts = [await batcher.submit(i) for i in range(3)]
        await fake_clock.run_until_idle()
        report = await batcher.shutdown(deadline=1.0)
        ends = [await receipt.settled() for receipt in receipts]
        assert ends == [Outcome.UNKNOWN, Outcome.UNSENT, Outcome.UNSENT]
        assert report.unsent == (1, 2)
        assert report.unknown == (0,)
        with pytest.raises(Exception, match="INCOMPLETE"):
            report.raise_if_incomplete()


# -- stored or raised ------------------------------------------------------------------------------


class Table:
    """A destination that answers each item by its name, with dead letters that refuse some."""

    STORED = ("delivered", "duplicate")
    ENDS = (*STORED, "dead_lettered", "rejected", "unsent", "unknown")

    def __init__(self) -> None:
        self.rows = ["duplicate"]
        self.letters: list[str] = []
        self.sink: Any = stack(self._write, DeadLetter(self._bury))

    async def _write(self, batch: Batch[str]) -> WriteResult:
        answers: dict[str, Outcome | Exception | None] = {
            "delivered": None,
            "duplicate": Outcome.DUPLICATE,
            "dead_lettered": PermanentError("dead_lettered"),
            "rejected": PermanentError("rejected"),
            "unsent": StoppedError("unsent"),
            "unknown": UnknownOutcomeError("unknown"),
        }
        self.rows += [item for item in batch if item == "delivered"]
        return WriteResult.from_outcomes(batch, [answers[item] for item in batch])

    async def _bury(self, batch: Batch[Any]) -> None:
        if any(record.item == "rejected" for record in batch):
            raise PermanentError("no letters")
        self.letters += [record.item for record in batch]

    def judge(self, item: str, returned: Outcome | ItemFailed) -> None:
        """A returned item is in the table, and a raised one is not, with its outcome and cause."""
        if isinstance(returned, Outcome):
            assert returned.value == item
            assert returned.is_success
            assert item in self.rows
            return
        assert returned.outcome.value == item
        assert not returned.outcome.is_success
        assert returned.outcome.is_safe == (item in self.letters) == (item == "dead_lettered")
        assert str(returned.__cause__) == item
        assert item not in self.rows


async def _awaited(receipt: Receipt) -> Outcome:
    return await receipt


async def _result(receipt: Receipt) -> Outcome:
    await receipt.settled()
    return receipt.result()


async def _gathered(receipt: Receipt) -> Outcome:
    return (await gather([receipt]))[0]


WAYS: dict[str, Callable[[Batcher[str], str], Awaitable[Outcome]]] = {
    "deliver": lambda batcher, item: batcher.deliver(item),
    "in time": lambda batcher, item: batcher.deliver(item, timeout=60.0),
}
RECEIPTS = {"await": _awaited, "result": _result, "gather": _gathered}
ARRANGED: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"key": str.lower},
    "tenants": {"tenant": str.lower},
    "both": {"key": len, "tenant": str.lower, "on_key_failure": "skip"},
}


@pytest.mark.parametrize("arranged", ARRANGED)
@pytest.mark.parametrize("way", [*WAYS, *RECEIPTS])
async def test_only_a_stored_item_returns(fake_clock: FakeClock, way: str, arranged: str) -> None:
    """batcher/B54: `deliver` and every wait for a receipt agree; `settled` gives every outcome."""
    table = Table()
    async with Batcher(table.sink, **ARRANGED[arranged]) as batcher:
        for item in Table.ENDS:
            try:
                if way in WAYS:
                    returned: Outcome | ItemFailed = await WAYS[way](batcher, item)
                else:
                    receipt = await batcher.submit(item)
                    assert (await receipt.settled()).value == item
                    returned = await RECEIPTS[way](receipt)
            except ItemFailed as failed:
                returned = failed
            table.judge(item, returned)
        await batcher.shutdown()  # which counts the unsent one


@pytest.mark.parametrize("arranged", ARRANGED)
def test_only_a_stored_item_returns_in_threads(arranged: str) -> None:
    """batcher/B47, batcher/B54: as in an event loop."""
    table = Table()
    limits = Limits(max_items=1)
    with BlockingBatcher(table.sink, limits=limits, **ARRANGED[arranged]) as batcher:
        for item in Table.ENDS:
            for timeout in (None, 60.0):
                try:
                    returned: Outcome | ItemFailed = batcher.deliver(item, timeout=timeout)
                except ItemFailed as failed:
                    returned = failed
                table.judge(item, returned)
            receipt = batcher.submit(item)
            assert receipt.settled(60.0).value == item
            try:
                returned = receipt.result()
            except ItemFailed as failed:
                returned = failed
            table.judge(item, returned)
        batcher.shutdown()


async def test_the_timeout_of_deliver_bounds_the_whole_wait(fake_clock: FakeClock) -> None:
    """`AddTimeout`: not accepted, never written. `DeliverTimeout`: accepted, written once."""
    rows: list[str] = []
    gates = {item: asyncio.Event() for item in "abcd"}

    async def write(batch: Batch[str]) -> None:
        await gates[batch[0]].wait()
        rows.extend(batch)

    async with Batcher(write, limits=Limits(max_items=1, max_pending_items=2)) as batcher:
        await batcher.add("a")

        async def deliver(item: str) -> tuple[float, Exception]:
            began = fake_clock.now()
            with pytest.raises((AddTimeout, DeliverTimeout)) as caught:
                await batcher.deliver(item, timeout=5.0)
            return fake_clock.now() - began, caught.value

        accepted = asyncio.create_task(deliver("b"))
        await fake_clock.run_until_idle()
        waits = asyncio.create_task(deliver("c"))
        refused = asyncio.create_task(deliver("d"))
        await fake_clock.advance(3.0)
        gates["a"].set()  # c gets the room, with 2 s left; b is still being written
        ends = {
            item: await task for item, task in zip("bcd", (accepted, waits, refused), strict=True)
        }
        assert [seconds for seconds, _ in ends.values()] == [pytest.approx(5.0)] * 3
        errors = [error for _, error in ends.values()]
        assert [*map(type, errors)] == [DeliverTimeout, DeliverTimeout, AddTimeout]
        for gate in gates.values():
            gate.set()
        for error in errors[:2]:
            assert isinstance(error, DeliverTimeout)
            assert await error.receipt is Outcome.DELIVERED
        assert await batcher.deliver("d", timeout=5.0) is Outcome.DELIVERED
    assert rows == ["a", "b", "c", "d"]
