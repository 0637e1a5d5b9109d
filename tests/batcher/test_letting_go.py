"""Delivered items are freed at once, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from sluicegate import (
    Batch,
    Batcher,
    CircuitBreaker,
    DeadLetter,
    Limits,
    PermanentError,
    Retry,
    Sink,
    Timeout,
    WriteResult,
    stack,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sluicegate.testing import FakeClock


class Item:
    """An item that supports weak references."""


class Forgetful:
    """A sink that keeps no batch."""

    async def write(self, batch: Batch[Item]) -> None:
        return None


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def decorated() -> Sink[Item]:
    return stack(Forgetful(), Timeout(5.0), CircuitBreaker(), Retry(), DeadLetter(Forgetful()))


@pytest.mark.parametrize("made", [Forgetful, decorated], ids=["bare", "decorated"])
async def test_a_delivered_batch_is_freed_while_the_batcher_runs_on(
    made: Callable[[], Sink[Item]], fake_clock: FakeClock
) -> None:
    async with Batcher(made(), limits=Limits(max_items=2)) as batcher:
        item = Item()
        watched = weakref.ref(item)
        receipt = await batcher.submit(item)
        del item
        await batcher.flush()
        await fake_clock.advance(1.0)
        assert receipt.done
        assert watched() is None


@pytest.mark.parametrize("keyed", [False, True], ids=["tenants", "keys of tenants"])
@pytest.mark.parametrize("held", [False, True], ids=["idle", "with a held key"])
async def test_a_delivered_batch_of_a_tenant_is_freed(
    fake_clock: FakeClock, *, keyed: bool, held: bool
) -> None:
    """Although the tenant's fast path appended to it, and the tenant still exists."""
    bad = Item()

    async def write(batch: Batch[Item]) -> WriteResult:
        errors = {i: PermanentError("no") for i, item in enumerate(batch) if item is bad}
        return WriteResult.failed(batch, errors)

    batcher = Batcher[Item](
        write,
        limits=Limits(max_items=10),
        tenant=lambda _: "one",
        key=id if keyed else None,
        on_key_failure="pause" if keyed else "skip",
    )
    async with batcher:
        items = [Item() for _ in range(5)]
        watched = [weakref.ref(item) for item in items]
        await batcher.add_from([bad] * held + items)
        del items
        await batcher.flush()
        await fake_clock.advance(1.0)
        gc.collect()  # errors and their tracebacks form cycles
        assert batcher.stats().held_keys == (held and keyed)
        assert [each() for each in watched] == [None] * 5
