"""Unknown outcomes of writes that may be repeated: an outage of the destination, or an item that
breaks its connection.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    Capabilities,
    DeadLetter,
    ErrorClass,
    FanOut,
    Limits,
    Outcome,
    Retry,
    RowBatch,
    UnavailableError,
    UnknownOutcomeError,
    send,
    stack,
)
from sluicegate.batcher import LoopClock
from sluicegate.errors import UnverifiableError
from sluicegate.testing import ScriptedSink, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import FakeClock


class Server:
    """Breaks the connections of some writes, half of them after the items were stored."""

    def __init__(
        self,
        breaks: Callable[[float, list[int]], bool],
        repeatable: Any,
        error: Callable[[], Exception] = lambda: UnknownOutcomeError("the connection was lost"),
    ) -> None:
        self.capabilities = Capabilities(repeatable=repeatable)
        self._breaks = breaks
        self._error = error
        self._rng = random.Random(1)
        self.calls: list[tuple[float, list[int]]] = []
        self.stored: dict[int, None] = {}

    async def write(self, batch: Batch[int]) -> None:
        now, items = asyncio.get_running_loop().time(), list(batch)
        self.calls.append((now, items))
        await asyncio.sleep(0.01)
        breaks = self._breaks(now, items)
        if not breaks or self._rng.random() < 0.5:
            self.stored.update(dict.fromkeys(items))
        if breaks:
            raise self._error()


async def outcomes(
    sink: Any, count: int, *, workers: int, key: Any = None, trickle: int = 0
) -> dict[int, Outcome | None]:
    limits = Limits(max_items=50, workers=workers, max_delay=0.05)
    async with Batcher(sink, limits=limits, key=key) as batcher:
        receipts = [await batcher.submit(item) for item in range(count)]
        for later in range(count, count + trickle):
            await batcher.add(later)
            await LoopClock().sleep(1.0)
        assert (await batcher.flush()).complete
    return {item: receipt.outcome for item, receipt in enumerate(receipts)}


DELIVERED = dict.fromkeys(range(1_000), Outcome.DELIVERED)


@pytest.mark.parametrize("repeatable", ["item", "write"])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("key", [None, lambda item: item % 7], ids=["plain", "keyed"])
@pytest.mark.parametrize("outage", [1.0, 300.0])
async def test_an_outage_that_leaves_outcomes_unknown_uses_no_attempt(
    fake_clock: FakeClock, repeatable: Any, workers: int, outage: float, key: Any
) -> None:
    """Every item is delivered, and one batch at a time probes."""
    server = Server(lambda now, _: now < outage, repeatable)
    retry = Retry(attempts=2, backoff=Backoff(rng=random.Random(1)))
    assert await outcomes(stack(server, retry), 1_000, workers=workers, key=key) == DELIVERED
    assert sorted(server.stored) == list(range(1_000))
    assert fake_clock.now() < outage + 15.0
    assert len([now for now, _ in server.calls if 0.5 < now < outage]) < outage + 10
    if workers == 1 and key is None and outage < 5:
        assert list(server.stored) == list(range(1_000))


@pytest.mark.parametrize(
    ("capability", "error"),
    [
        (None, UnknownOutcomeError),
        ("write", UnverifiableError),
        ("item", UnverifiableError),
    ],
)
async def test_other_unknown_outcomes_use_attempts(
    fake_clock: FakeClock, capability: Any, error: type[Exception]
) -> None:
    """Where a repetition may store an item twice, and where the destination has answered."""
    server = Server(lambda *_: True, capability, lambda: error("unknown"))
    found = await outcomes(stack(server, Retry(attempts=3)), 50, workers=1)
    assert {*found.values()} == {Outcome.UNKNOWN}
    assert len(server.calls) == 3


@pytest.mark.parametrize("repeatable", ["item", "write"])
async def test_at_most_once_is_kept(fake_clock: FakeClock, repeatable: Any) -> None:
    server = Server(lambda *_: True, repeatable)
    found = await outcomes(stack(server, Retry(resend_unknown=False)), 50, workers=1)
    assert {*found.values()} == {Outcome.UNKNOWN}
    assert len(server.calls) == 1


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("key", [None, lambda item: item % 500], ids=["plain", "keyed"])
@pytest.mark.parametrize("bad", [0, 434, 949])
@pytest.mark.parametrize("repeatable", ["item", "write"])
async def test_an_item_that_breaks_its_connection_is_given_up_while_others_are_accepted(
    fake_clock: FakeClock, repeatable: Any, workers: int, bad: int, key: Any
) -> None:
    """It ends unknown: alone if its batch may be divided, otherwise with its batch, once later items
    have shown that the destination works.
    """
    server = Server(lambda _, items: bad in items, repeatable)
    taken: list[Any] = []

    async def take(batch: Batch[Any]) -> None:
        taken.extend(batch)

    sink = stack(server, Retry(attempts=3, backoff=Backoff(rng=random.Random(1))), DeadLetter(take))
    found = await outcomes(sink, 1_000, workers=workers, key=key, trickle=60)
    lost = {item for item, outcome in found.items() if outcome is not Outcome.DELIVERED}
    assert {found[item] for item in lost} == {Outcome.UNKNOWN}
    with_it = next(items for _, items in server.calls if bad in items)
    assert lost == ({bad} if repeatable == "item" else {*with_it})
    assert taken == []
    assert fake_clock.now() < 200


@pytest.mark.parametrize("repeatable", ["item", "write"])
async def test_a_shutdown_in_such_an_outage_ends_unknown(
    fake_clock: FakeClock, repeatable: Any
) -> None:
    """Not unsent, since an earlier attempt may have been applied; an item that was never sent is
    unsent.
    """
    server = Server(lambda *_: True, repeatable)
    limits = Limits(max_items=50, workers=1, max_delay=0.05)
    batcher = Batcher(stack(server, Retry(attempts=2)), limits=limits)
    async with batcher:
        receipts = [await batcher.submit(item) for item in range(100)]
        await fake_clock.sleep(3.0)
        report = await batcher.shutdown(2.0)
    assert report.tally.unknown + report.tally.unsent == 100
    sent = {item for _, items in server.calls for item in items}
    found = {item for item, each in enumerate(receipts) if each.outcome is Outcome.UNKNOWN}
    assert found == sent >= set(range(50))


async def test_such_an_outage_can_be_given_up(fake_clock: FakeClock) -> None:
    server = Server(lambda *_: True, "write")
    found = await outcomes(stack(server, Retry(give_up_after=20.0)), 50, workers=1)
    assert {*found.values()} == {Outcome.UNKNOWN}
    assert 15 < fake_clock.now() < 26


async def test_outside_a_batcher_unknown_outcomes_use_attempts(fake_clock: FakeClock) -> None:
    """No shutdown would end the outage, and nothing divides the batch."""
    server = Server(lambda *_: True, "item")
    errors = await send(stack(server, Retry(attempts=3)), RowBatch(range(10)))
    assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
    assert [len(items) for _, items in server.calls] == [10, 10, 10]


def test_several_sinks_are_repeatable_as_all_of_them_are() -> None:
    def made(**known: Any) -> Any:
        sink: Any = ScriptedSink([fail(UnavailableError("down"))])
        sink.capabilities = Capabilities(**known)
        return sink

    item, write, none = made(idempotent=True), made(repeatable="write"), made()
    assert FanOut(item, item).capabilities.repeatable == "item"
    assert FanOut(item, write).capabilities.repeatable == "write"
    assert FanOut(item, write, none).capabilities.repeatable is None


@pytest.mark.parametrize("key", [None, lambda item: item % 7], ids=["plain", "keyed"])
async def test_deadlocks_halve_the_parts_of_a_batch_that_is_searched(
    fake_clock: FakeClock, key: Any
) -> None:
    """An earlier unknown outcome does not keep a part whole forever."""

    class Locked(Server):
        def classify(self, error: BaseException) -> ErrorClass | None:
            return ErrorClass.DEADLOCK if isinstance(error, InterruptedError) else None

        async def write(self, batch: Batch[int]) -> None:
            if self.calls and len(batch) > 2:
                self.calls.append((fake_clock.now(), list(batch)))
                raise InterruptedError
            await super().write(batch)

    server = Locked(lambda now, _: now == 0.0, "item")
    sink = stack(server, Retry(attempts=2, backoff=Backoff(rng=random.Random(1))))
    assert {*(await outcomes(sink, 50, workers=1, key=key)).values()} == {Outcome.DELIVERED}
    assert sorted(server.stored) == list(range(50))
    assert fake_clock.now() < 60
