"""The conformance suite of sinks.

    class TestMySink(SinkConformance[dict]):
        def sink(self):
            return MySink("...")

        def item(self, number):
            return {"id": number}

1. Each test makes its own sinks with `sink()`, on one destination, and new items with
   `item(number)`.
2. With `stored()` the suite checks every result against the destination; without it, only the
   externally visible behaviour.
3. With `bad_item(number)` it checks the effect of a refused item on the other items.
4. Items that are rows, or that `columns(items)` converts to columns, are also sent as columns, with
   the same outcomes: Spark sends nothing else.
5. The tests run on their own loop in real time, and wait only for the sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.batch import RowBatch
from ..._core.errors import ConfigError, ErrorClass
from ..._core.send import send
from ..._core.sink import Capabilities
from ..._core.stacking import stack
from ..._core.transaction import check_transactional
from .columns import ColumnTests
from .interruptions import InterruptionTests
from .lifecycle import LifecycleTests
from .rows import RowTests

if TYPE_CHECKING:
    from ..._core.clock import LoopClock

T = TypeVar("T")


class SinkConformance(RowTests[T], ColumnTests[T], InterruptionTests[T], LifecycleTests[T]):
    """The suite of every sink. Name the subclass `Test...`, and implement the hooks."""

    async def test_its_capabilities_are_true(self, real_clock: LoopClock) -> None:
        """`capabilities` is a `Capabilities`, and `idempotent` and `transactional` are true if set."""
        async with self.open_sink() as sink:
            told = getattr(sink, "capabilities", Capabilities())
            assert isinstance(told, Capabilities), (
                f"capabilities is {told!r}; expected a Capabilities(...)"
            )
            assert told.transactional == _can_have_a_transaction(sink), (
                "`transactional` requires a method `transaction(unit)`, and vice versa"
            )
            if told.idempotent:
                items = self.items(3)
                for _ in range(2):
                    assert await send(sink, RowBatch(items)) == {}
                assert await self.copies(items[0]) in {None, 1}, (
                    "the sink claims to be idempotent, and stored the same item twice"
                )

    def test_it_classifies_without_raising(self) -> None:
        """`classify` returns an `ErrorClass`, or `None` for an unknown error."""
        classifier: Any = getattr(stack(self.sink()), "classify", None)
        if classifier is not None:
            for error in (KeyError("k"), OSError(5, "io"), TimeoutError(), ConnectionResetError()):
                assert classifier(error) is None or isinstance(classifier(error), ErrorClass)


def _can_have_a_transaction(sink: object) -> bool:
    try:
        check_transactional(sink)
    except ConfigError:
        return False
    return True
