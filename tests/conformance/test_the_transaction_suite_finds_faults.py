"""The suite detects faults: each of these sinks has one in its transactions, and the suite
fails.

White box: a sink that joins its transaction wrongly.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from tests.conformance.transaction_suite import TransactionConformance

from sluicegate import Capabilities
from sluicegate._core.transaction import enlist
from sluicegate.batcher import LoopClock
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate import Sink
    from sluicegate.sinks import Unit


class Faultless(MemorySink[int]):
    """A sink without a fault."""


class SeenAtOnce(Faultless):
    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Any]:
        def past_it(_: Sink[int]) -> Sink[int]:
            return self

        async with super().transaction(unit) as tx:
            yield enlist(past_it, tx)


class CommitsAnyhow(Faultless):
    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Any]:
        failed: Exception | None = None
        async with super().transaction(unit) as tx:
            try:
                yield tx
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed


class Forgets(Faultless):
    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Any]:
        async with super().transaction(unit and replace(unit, application=uuid4().hex)) as tx:
            yield tx


class TakesAnyParts(Faultless):
    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Any]:
        async with super().transaction(unit and replace(unit, parts=99, rule="")) as tx:
            yield tx


class TakesLateWrites(Faultless):
    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Any]:
        async with super().transaction(unit) as tx:
            yield tx
        tx._is_over = False  # type: ignore[attr-defined]  # the destination's own


class KeepsItToItself(Faultless):
    capabilities = Capabilities()


FAULTS: list[tuple[type[Faultless], str]] = [
    (KeepsItToItself, "it_says_that_it_has_transactions"),
    (SeenAtOnce, "writes_are_seen_with_the_commit"),
    (SeenAtOnce, "an_exception_rolls_back"),
    (CommitsAnyhow, "an_exception_rolls_back"),
    (Forgets, "a_committed_unit_is_not_written_again"),
    (Forgets, "a_cancellation_leaves_all_or_nothing"),
    (Forgets, "two_attempts_at_once_have_one_effect"),
    (TakesAnyParts, "other_parts_of_a_version_are_refused"),
    (TakesLateWrites, "what_comes_after_the_end_is_not_written"),
]


def run(sink: Faultless, name: str) -> None:
    class Suite(TransactionConformance[int]):
        def sink(self) -> Any:
            return sink

        def item(self, number: int) -> int:
            return number

        async def stored(self) -> list[int]:
            return sink.items

    asyncio.run(getattr(Suite(), f"test_{name}")(LoopClock()))


@pytest.mark.parametrize(
    ("fault", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_each_fault_is_found(fault: type[Faultless], name: str) -> None:
    """P-T7, P-T8, P-T21."""
    run(Faultless(), name)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(fault(), name)
