"""What decorators cost when all goes well: a stack of them beside the bare sink, in processor time."""

from __future__ import annotations

import contextlib
from time import process_time
from typing import TYPE_CHECKING

from penstock import Retry, Sink, Timeout, stack

from ..feeds import add, ours
from ..harness import NS_PER_ITEM, AtMost, Case, Contender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..harness import Turn

BARE = "bare sink"
TIMEOUT = "Timeout"
BOTH = "Timeout, Retry"


def _timeout(sink: Sink[int]) -> Sink[int]:
    return stack(sink, Timeout(5.0))


def _both(sink: Sink[int]) -> Sink[int]:
    return stack(sink, Timeout(5.0), Retry())


def _turn(items: Sequence[int], wrap: Callable[[Sink[int]], Sink[int]] | None = None) -> Turn:
    return ours(add, items, wrap=wrap, now=process_time)


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    items = range(count)
    yield (
        Contender(BARE, _turn(items), ours=True),
        Contender(TIMEOUT, _turn(items, _timeout), ours=True),
        Contender(BOTH, _turn(items, _both), ours=True),
    )


CASE = Case(
    name="decorators",
    title="Decorators around a sink that does nothing, batches of 500",
    prepare=prepare,
    items=200_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(BARE,),
    targets=(AtMost(BOTH, BARE, 1.2),),
)
