"""The expected state of a batcher: all accepted items, their outcomes, and what follows from
both.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluicegate import AddTimeout, Batcher, ClosedError, Observer, Outcome
from sluicegate.errors import ItemTooLarge, KeyFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from sluicegate import Batch, Limits, Receipt


@dataclass(slots=True, eq=False)
class Producer:
    """A producer and the items it adds."""

    items: tuple[int, ...] = ()
    task: asyncio.Task[None] | None = None

    @property
    def waits(self) -> bool:
        return self.task is not None and not self.task.done()


class Watch(Observer):
    """Records every outcome that a batcher reports, and checks the law each time."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def on_sealed(self, batch: Batch[Any]) -> None:
        self._model.taken.update(batch)
        self._model.check_law()

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        for index in indices:
            self._model.end(batch[index], outcome)
        self._model.check_law()

    def on_dropped(self, name: str, items: Sequence[Any], reason: str) -> None:
        older = [item for item in items if item in self._model.place]
        if older and self._model.queued()[: len(older)] != older:
            self._model.broken.append(
                f"dropped {older}, and not the oldest of {self._model.queued()}"
            )
        if self._model.evicted and not older:
            self._model.broken.append(
                f"dropped {items} all the same, so {self._model.evicted} in vain"
            )
        self._model.evicted = older
        for item in items:
            self._model.end(item, Outcome.DROPPED)
        self._model.check_law()


@dataclass(eq=False)
class Model:
    """Items are numbered in the order of their offers; `accepted` keeps the order of acceptance."""

    batcher: Batcher[int] = field(init=False)
    limits: Limits
    measure: Callable[[int], int]
    offered: int = 0
    refused: int = 0
    maybe_refused: int = 0
    accepted: list[int] = field(default_factory=list[int])
    place: dict[int, int] = field(default_factory=dict[int, int])
    taken: set[int] = field(default_factory=set[int])
    outcomes: dict[int, Outcome] = field(default_factory=dict[int, Outcome])
    evicted: list[int] = field(default_factory=list[int])
    """Items that were just dropped to make room."""
    receipts: dict[int, Receipt] = field(default_factory=dict[int, "Receipt"])
    producers: list[Producer] = field(default_factory=list[Producer])
    fences: list[list[int]] = field(default_factory=list[list[int]])
    """The items that each running flush waits for."""
    broken: list[str] = field(default_factory=list[str])

    # -- events ------------------------------------------------------------------------------------

    def numbers(self, count: int) -> tuple[int, ...]:
        """The numbers of the next items."""
        self.offered += count
        return tuple(range(self.offered - count, self.offered))

    def accept(self, items: Sequence[int]) -> None:
        """These items were accepted."""
        self.evicted = []
        for item in items:
            self.place[item] = len(self.accepted)
            self.accepted.append(item)

    def end(self, item: int, outcome: Outcome) -> None:
        """An item got its outcome."""
        if item in self.outcomes:
            self.broken.append(f"item {item} ended {self.outcomes[item]} and then {outcome}")
        self.outcomes[item] = outcome

    def produce(
        self, count: int, call: Callable[[Producer], Coroutine[Any, Any, None]]
    ) -> Producer:
        """Start a producer that offers `count` items by `call`."""
        producer = Producer()

        async def offer() -> None:
            producer.items = self.numbers(count)
            try:
                await call(producer)
            except (AddTimeout, ItemTooLarge, KeyFailedError):
                self.refused += count
            except (ClosedError, asyncio.CancelledError):
                self.maybe_refused += count
            else:
                self.accept(producer.items)

        producer.task = asyncio.get_running_loop().create_task(offer())
        self.producers.append(producer)
        return producer

    async def flush(self, seconds: float | None) -> None:
        """Flush, and check its report."""
        before = list(self.accepted)
        self.fences.append(before)
        try:
            report = await self.batcher.flush(seconds)
        except ClosedError:
            return
        finally:
            self.fences.remove(before)
        self.check_law()
        left = [item for item in before if item not in self.outcomes]
        told = self.batcher.stats().state == "open"  # later, items end unsent without a call
        if report.remaining > len(left) or (told and report.remaining != len(left)):
            self.broken.append(
                f"a flush says that {report.remaining} items remain; these do: {left}"
            )

    # -- the laws ----------------------------------------------------------------------------------

    def waiting(self) -> list[Producer]:
        """Waiting producers, in order of arrival."""
        return [producer for producer in self.producers if producer.waits]

    def inside(self) -> list[int]:
        """Accepted items without an outcome."""
        return [item for item in self.accepted if item not in self.outcomes]

    def queued(self) -> list[int]:
        """Accepted items that no worker has taken, oldest first."""
        return [item for item in self.inside() if item not in self.taken]

    def check_law(self) -> None:
        """Check the law, at any moment."""
        tally = self.batcher.tally()
        try:
            tally.verify()
        except AssertionError as error:
            self.broken.append(str(error))
        if tally.inside > self.limits.ledger_items:
            self.broken.append(
                f"{tally.inside} items inside a ledger of {self.limits.ledger_items}"
            )
        if min(tally.queued, tally.in_flight, tally.backing_off) < 0:
            self.broken.append(f"less than nothing: {tally}")

    def check_counts(self) -> None:
        """Check the tally against the model's own counts."""
        self.check_law()
        tally = self.batcher.tally()
        most = self.limits.max_pending_bytes
        assert most is None or sum(map(self.measure, self.inside())) <= most, (
            f"more than {most} bytes inside"
        )
        assert tally.accepted == len(self.accepted), (
            f"{tally}, but {len(self.accepted)} items got in"
        )
        assert self.refused <= tally.refused <= self.refused + self.maybe_refused, (
            f"{tally}, but {self.refused} were refused"
        )
        counts = Counter(self.outcomes[item] for item in self.accepted if item in self.outcomes)
        silent = {Outcome.UNSENT, Outcome.DEAD_LETTERED}  # these items end without a call
        for outcome in Outcome:
            told, counted = counts[outcome], tally.of(outcome)
            assert told == counted or (
                outcome in silent and told < counted and self.batcher.stats().state != "open"
            ), f"{counted} {outcome.value}, but {told} were told"
        failed = tally.rejected + tally.unknown + tally.dropped + tally.unsent
        assert tally.lost == failed, "items without a source that fail are lost"
        assert set(self.outcomes) <= self.place.keys(), "an item that never got in has an outcome"

    def check_receipts(self) -> None:
        """Check that the receipts agree."""
        for item, receipt in self.receipts.items():
            told = self.outcomes.get(item)
            if told is not None and told is not Outcome.UNSENT:
                assert receipt.outcome is told, (
                    f"the receipt of item {item} says {receipt.outcome}, and it ended {told}"
                )
            elif self.batcher.stats().state == "open":
                assert receipt.outcome is told, (
                    f"the receipt of item {item} says {receipt.outcome}, and nobody else does"
                )

    def check_queue(self) -> None:
        """Check that no waiting producer was overtaken or could have been admitted."""
        waiting = self.waiting()
        assert self.batcher.stats().waiting_producers == len(waiting), (
            f"{len(waiting)} producers wait, says nobody"
        )
        if not waiting:
            return
        head = waiting[0]
        later = [item for item in self.accepted if item > head.items[0]]
        assert not later, f"items {later} overtook {head.items}"
        inside = self.inside()
        fits = len(inside) + len(head.items) <= self.limits.ledger_items
        most = self.limits.max_pending_bytes
        if most is not None:
            fits = (
                fits and sum(map(self.measure, inside)) + sum(map(self.measure, head.items)) <= most
            )
        assert not fits, f"items {head.items} wait, and there is room: {inside} inside"
