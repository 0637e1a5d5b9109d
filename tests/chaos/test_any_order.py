"""Decorators in any order and number have their documented effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st
from tests.machine.destination import Act, Destination, Write
from tests.machine.setting import acts
from tests.properties import examples

from sluicegate import (
    Batch,
    Batcher,
    CircuitBreaker,
    DeadLetter,
    Limits,
    Observer,
    Outcome,
    Receipt,
    Retry,
    Timeout,
    stack,
)
from sluicegate.sinks import Isolate, Split
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.filterwarnings("ignore:a DeadLetter inside a Retry")

ITEMS = 12
LEVELS = 3
"""The number of halvings of a batch of 8 items."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A decorator of one kind, with a number whose meaning depends on the kind."""

    kind: str
    number: int

    def made(self, letters: Letters, *, patient: bool) -> Any:
        """The decorator; a patient one never cuts, and waits instead of refusing."""
        match self.kind:
            case "timeout":
                return Timeout(10_000.0 if patient else 1.5 * self.number)
            case "retry":
                return Retry(attempts=self.number, backoff=tenacity.wait_fixed(0.5))
            case "dead letter":
                return DeadLetter(letters)
            case "breaker":
                return CircuitBreaker(
                    consecutive=self.number,
                    open_for=1.0,
                    when_open="wait" if patient or self.number > 1 else "raise",
                )
            case "split":
                return Split(self.number)
            case _:
                return Isolate()


def _with_one_dead_letter(stacked: list[Layer]) -> list[Layer]:
    first = next((layer for layer in stacked if layer.kind == "dead letter"), None)
    return [layer for layer in stacked if layer.kind != "dead letter" or layer is first]


layers = st.lists(
    st.builds(
        Layer,
        st.sampled_from(
            ["timeout", "retry", "retry", "dead letter", "breaker", "split", "isolate"]
        ),
        st.integers(1, 3),
    ),
    max_size=6,
).map(_with_one_dead_letter)
"""A second `DeadLetter` would take the same classes of errors, which is refused."""


class Letters:
    """Accepts every record."""

    def __init__(self) -> None:
        self.items: list[int] = []

    async def write(self, batch: Batch[Any]) -> None:
        self.items += [record.item for record in batch]


class Run(Observer):
    """Some items written through a stack."""

    def __init__(
        self,
        stacked: list[Layer],
        *,
        default: Act,
        script: Sequence[Act] = (),
        workers: int = 1,
        patient: bool = True,
    ) -> None:
        self.letters = Letters()
        self.destination = Destination(default=default, workers=workers, max_items=8)
        self.destination.script.extend(script)
        self.outcomes: dict[int, Outcome] = {}
        self.destination.is_settled = self.outcomes.__contains__
        self.receipts: list[Receipt] = []
        self._patient = patient
        self._workers = workers
        self._sink = stack(
            self.destination, *(layer.made(self.letters, patient=patient) for layer in stacked)
        )

    def on_outcome(self, batch: Batch[int], outcome: Outcome, indices: Sequence[int]) -> None:
        self.batcher.tally().verify()
        for index in indices:
            assert batch[index] not in self.outcomes
            self.outcomes[batch[index]] = outcome

    def go(self, deadline: float | None = None) -> list[Outcome]:
        """Run to the end; return the outcomes of the items."""
        with FakeClock() as clock:
            clock.run(self._go(clock, deadline))
            assert clock.leftovers() == []
        assert self.destination.broken == []
        ends = [receipt.outcome for receipt in self.receipts]
        assert ends == [self.outcomes.get(item, Outcome.UNSENT) for item in range(ITEMS)]
        return [end for end in ends if end is not None]

    async def _go(self, clock: FakeClock, deadline: float | None) -> None:
        limits = Limits(
            max_items=8,
            workers=self._workers,
            max_delay=0.5,
            flush_timeout=20_000.0 if self._patient else 6.0,
        )
        async with Batcher(
            self._sink, limits=limits, observers=[self], shutdown_deadline=deadline or 25.0
        ) as self.batcher:
            for item in range(ITEMS):
                self.receipts.append(await self.batcher.submit(item))
            if deadline is None:
                assert (await self.batcher.flush()).complete
            else:
                await clock.sleep(1.0)
            report = await self.batcher.shutdown()
            report.verify()
            assert self.batcher.tally() == report.tally
            await clock.sleep(500.0)
            assert self.batcher.tally() == report.tally

    def writes_of(self, item: int) -> list[Write]:
        """The writes of an item that may count as attempts: neither throttled nor to an unavailable
        destination.
        """
        return [
            write
            for write in self.destination.writes
            if item in write.items and not _is_free(write.act)
        ]


def _is_free(act: Act) -> bool:
    return act.kind in {"fail", "half", "partial"} and act.error in {"throttled", "unavailable"}


@examples(30, long=300)
@given(stacked=layers, workers=st.integers(1, 3))
def test_a_healthy_destination_gets_every_item_once_in_as_few_writes_as_the_splits_allow(
    stacked: list[Layer], workers: int
) -> None:
    """B-T21, B-T41: nothing else in the stack writes."""
    run = Run(stacked, default=Act(), workers=workers)
    assert run.go() == [Outcome.DELIVERED] * ITEMS
    assert sorted(run.destination.applied) == list(range(ITEMS))
    parts = [8, 4]
    for layer in reversed(stacked):
        if layer.kind == "split":
            parts = [
                min(layer.number, part - first)
                for part in parts
                for first in range(0, part, layer.number)
            ]
    assert sorted(len(write.items) for write in run.destination.writes) == sorted(parts)


@examples(30, long=300)
@given(stacked=layers, workers=st.integers(1, 3))
def test_a_destination_that_keeps_failing_gets_as_many_tries_as_the_retries_say(
    stacked: list[Layer], workers: int
) -> None:
    """B-T15, B-T21: nested retries multiply, up to the first dead letter."""
    run = Run(stacked, default=Act("fail"), workers=workers)
    tries, buried = 1, False
    for layer in stacked:
        buried = buried or layer.kind == "dead letter"
        if layer.kind == "retry" and not buried:
            tries *= layer.number
    assert run.go() == [Outcome.DEAD_LETTERED if buried else Outcome.REJECTED] * ITEMS
    assert [len(run.writes_of(item)) for item in range(ITEMS)] == [tries] * ITEMS
    assert sorted(run.letters.items) == (list(range(ITEMS)) if buried else [])


@examples(30, long=300)
@given(stacked=layers, workers=st.integers(1, 3))
def test_what_is_refused_for_good_is_tried_once_and_hurts_no_neighbour(
    stacked: list[Layer], workers: int
) -> None:
    """B-T18, B-T21: the destination refuses items one by one."""
    run = Run(
        stacked, default=Act("partial", error="permanent", which=frozenset({0})), workers=workers
    )
    buried = any(layer.kind == "dead letter" for layer in stacked)
    bad = Outcome.DEAD_LETTERED if buried else Outcome.REJECTED
    assert run.go() == [Outcome.DELIVERED if item % 3 else bad for item in range(ITEMS)]
    assert [len(run.writes_of(item)) for item in range(ITEMS)] == [1] * ITEMS
    assert sorted(run.letters.items) == (list(range(0, ITEMS, 3)) if buried else [])


@examples(60, long=500)
@given(
    stacked=layers,
    workers=st.integers(1, 3),
    script=st.lists(acts, max_size=12),
    deadline=st.sampled_from([None, 0.01, 2.0, 60.0]),
)
def test_whatever_the_destination_does_outcomes_are_true(
    stacked: list[Layer], workers: int, script: list[Act], deadline: float | None
) -> None:
    """batcher/4b.1, B-T41, B-T57: no item is lost, none is sent after it was settled, and attempts
    stay within the limits. An attempt that the shutdown moves forward does not count.
    """
    run = Run(stacked, default=Act(), script=script, workers=workers, patient=False)
    ends = run.go(deadline)
    most = 1
    for layer in stacked:
        if layer.kind == "retry":
            most *= layer.number + (deadline is not None)
        elif layer.kind == "isolate":
            most *= LEVELS + 1
    for item, end in enumerate(ends):
        assert len(run.writes_of(item)) <= most, (
            f"item {item} was written {len(run.writes_of(item))} times"
        )
        applied, doubtful = item in run.destination.applied, run.destination.may_differ(item)
        if end in {Outcome.DELIVERED, Outcome.DUPLICATE}:
            assert applied
        elif end is Outcome.DEAD_LETTERED:
            assert item in run.letters.items
            assert not applied or doubtful
        elif end is Outcome.UNKNOWN:
            assert doubtful
        else:
            assert not applied, f"item {item} ended {end.value} and was applied"
