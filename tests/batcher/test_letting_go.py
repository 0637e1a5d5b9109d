"""What was delivered is let go at once: it does not wait for the garbage collector."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from penstock import Batch, Batcher, CircuitBreaker, DeadLetter, Limits, Retry, Sink, Timeout, stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.testing import FakeClock


class Item:
    """Something that can be watched."""


class Forgetful:
    """Keeps nothing."""

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
