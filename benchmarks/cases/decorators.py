"""The cost of decorators without failures: a stack compared with the bare sink, in processor time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from sluicegate import CircuitBreaker, DeadLetter, Retry, Sink, Timeout, stack
from sluicegate.telemetry import Metrics, Tracing

from ..feeds import add, ours
from ..harness import NS_PER_ITEM, AtMost, Case, Ceiling, Contender
from ..stopwatch import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sluicegate.sinks import Decorator

    from ..harness import Turn

BARE = "bare sink"
FOUR = "Timeout, CircuitBreaker, Retry, DeadLetter"
FULL = "the same, Metrics, Tracing"


def _letters(_: object) -> None:
    raise AssertionError("nothing failed, so nothing is buried")


def _watched() -> tuple[Decorator[int], ...]:
    """Make metrics in a separate registry, and traces without a collector."""
    return (Metrics("bench", registry=CollectorRegistry()), Tracing())


DECORATORS: dict[str, Callable[[], tuple[Decorator[int], ...]]] = {
    "Timeout": lambda: (Timeout(5.0),),
    "CircuitBreaker": lambda: (CircuitBreaker(),),
    "Retry": lambda: (Retry(),),
    "DeadLetter": lambda: (DeadLetter(_letters),),
    FOUR: lambda: (Timeout(5.0), CircuitBreaker(), Retry(), DeadLetter(_letters)),
    FULL: lambda: (Timeout(5.0), CircuitBreaker(), Retry(), DeadLetter(_letters), *_watched()),
}


def _around(made: Callable[[], tuple[Decorator[int], ...]]) -> Callable[[Sink[int]], Sink[int]]:
    return lambda sink: stack(sink, *made())


def _turn(items: Sequence[int], wrap: Callable[[Sink[int]], Sink[int]] | None = None) -> Turn:
    return ours(add, items, wrap=wrap)


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    items = range(count)
    yield (
        Contender(BARE, _turn(items), ours=True),
        *(
            Contender(name, _turn(items, _around(made)), ours=True)
            for name, made in DECORATORS.items()
        ),
    )


CASE = Case(
    name="decorators",
    title="Decorators around a sink that does nothing, batches of 500",
    prepare=prepare,
    items=200_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    by=Clock.PROCESSOR,
    peers=(BARE,),
    targets=(AtMost(FOUR, BARE, 1.2), Ceiling(FULL, 1000)),
)
