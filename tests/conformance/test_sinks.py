"""Every shipped decorator and combinator, and the destinations without a server, fulfil the
contract of sinks.

White box: a function as a sink, outside a stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.transaction_suite import TransactionConformance

from sluicegate import (
    Batch,
    CircuitBreaker,
    DeadLetter,
    FanOut,
    Observer,
    PermanentError,
    Retry,
    Timeout,
    WriteResult,
    stack,
)
from sluicegate._core.stacking import FunctionSink
from sluicegate.sinks import Combine, Isolate, MemorySink, RateLimit, Router, Split
from sluicegate.telemetry import Observed, Tracing
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from sluicegate import Sink
    from sluicegate._core.sink import SinkLike

Row = dict[str, int]
SHELVES: dict[int, list[Any]] = {}


class Shelf:
    """A destination outside the sink objects: items written under a number stay there. Refuses
    negative items.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    async def write(self, batch: Batch[Row]) -> WriteResult:
        SHELVES.setdefault(self.number, []).extend(item for item in batch if item["n"] >= 0)
        return WriteResult.failed(
            batch,
            {
                i: PermanentError(f"{item} is negative")
                for i, item in enumerate(batch)
                if item["n"] < 0
            },
        )


class Numbers(SinkConformance[Row]):
    """Numbers on a shelf, through the decorators of the subclass."""

    def sink(self) -> SinkLike[Row]:
        return self.around(Shelf(id(type(self))))

    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return shelf

    def item(self, number: int) -> Row:
        return {"n": number}

    def bad_item(self, number: int) -> Row | None:
        return {"n": -number}

    async def stored(self) -> list[Row]:
        return SHELVES.get(id(type(self)), [])


class TestPlain(Numbers):
    pass


class TestTimeout(Numbers):
    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return stack(shelf, Timeout(5.0))


class TestRetry(Numbers):
    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return stack(shelf, Retry())


class TestCircuitBreaker(Numbers):
    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return stack(shelf, CircuitBreaker())


class TestRateLimit(Numbers):
    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return stack(shelf, RateLimit(1_000_000))


class TestSplit(Numbers):
    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return stack(shelf, Split(max_items=2))


class TestIsolate(Numbers):
    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return stack(shelf, Isolate())


class TestObserved(Numbers):
    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return stack(shelf, Observed(Observer()))


class TestTracing(Numbers):
    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return stack(shelf, Tracing())


class TestEverything(Numbers):
    """The stack on the page about the order of decorators."""

    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return stack(
            shelf,
            Isolate(),
            Timeout(5.0),
            CircuitBreaker(),
            Retry(),
            Observed(Observer()),
            Tracing(),
        )


class TestRouter(Numbers):
    ordered = False

    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return Router(lambda item: str(item["n"] % 2), {"0": shelf, "1": Shelf(shelf.number)})  # type: ignore[attr-defined]


class TestCombine(Numbers):
    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return Combine(shelf, key=lambda item: item["n"], merge=lambda one, _: one)


class TestFanOut(Numbers):
    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return FanOut(shelf, best_effort=[MemorySink()])


class TestDeadLetter(Numbers):
    """A refused item is stored as a dead letter, so no item is refused here."""

    def around(self, shelf: Sink[Row]) -> SinkLike[Row]:
        return stack(shelf, DeadLetter(MemorySink()))

    def bad_item(self, number: int) -> Row | None:
        return None


def put_on_shelf(batch: Batch[Row]) -> None:
    SHELVES.setdefault(-1, []).extend(batch)


class TestFunctionInAThread(Numbers):
    def sink(self) -> SinkLike[Row]:
        return FunctionSink(put_on_shelf)

    def bad_item(self, number: int) -> Row | None:
        return None

    async def stored(self) -> list[Row]:
        return SHELVES.get(-1, [])


class TestFunction(TestFunctionInAThread):
    def sink(self) -> SinkLike[Row]:
        async def write(batch: Batch[Row]) -> None:
            put_on_shelf(batch)

        return write


class TestMemorySink(TransactionConformance[Row]):
    """With its transactions."""

    @pytest.fixture(autouse=True)
    def empty(self) -> None:
        self.memory = MemorySink[Row]()

    def sink(self) -> SinkLike[Row]:
        return self.memory

    def item(self, number: int) -> Row:
        return {"n": number}

    async def stored(self) -> list[Row]:
        return self.memory.items


class TestTransactionsOfAStack(TestMemorySink):
    """P-T21: the decorators of a destination also surround its transactions."""

    def sink(self) -> SinkLike[Row]:
        around = (
            Timeout(5.0),
            RateLimit(items_per_second=1e6),
            CircuitBreaker(),
            Retry(),
            DeadLetter(MemorySink[Any]()),
            Observed(Observer()),
        )
        return stack(self.memory, Isolate(), Split(3), *around, Tracing())
