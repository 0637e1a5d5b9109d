"""Full stacks in the recommended order, over one or several destinations."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.storm import KEYS, Row, Storm

from sluicegate import Backoff, CircuitBreaker, DeadLetter, FanOut, Retry, Sink, Timeout, stack
from sluicegate.sinks import Combine, Isolate, RateLimit, Router, Split

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.lanes import Lanes


@dataclass(slots=True)
class Shape:
    """A sink and its destinations."""

    rng: random.Random
    calm_at: float
    bad: frozenset[int]
    deaf: bool
    lanes: Lanes | None = None
    settled: set[int] = field(default_factory=set[int])
    """Items with an outcome; the batcher's observer fills it."""
    required: list[Storm] = field(default_factory=list[Storm])
    """An item is delivered when all of these that should receive it have it."""
    optional: list[Storm] = field(default_factory=list[Storm])
    letters: Storm = field(init=False)
    sink: Sink[Row] = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.letters = self._storm(frozenset(), per_item=True, again=set())
        self.name = self.rng.choice(sorted(SHAPES))
        target = stack(self.letters, Timeout(5.0), self._retry())
        self.sink = stack(SHAPES[self.name](self), DeadLetter(target))

    def _storm(
        self, bad: frozenset[int], *, per_item: bool, again: set[int] | None = None
    ) -> Storm:
        return Storm(
            self.rng.getrandbits(64),
            calm_at=self.calm_at,
            bad=bad,
            per_item=per_item,
            deaf=self.deaf,
            again=self.settled if again is None else again,
            **({} if self.lanes is None else {"lines": self.lanes.lines}),
        )

    def _retry(self) -> Retry:
        """Retries without limit: no item is at fault for the destination's failures."""
        rng = self.rng
        backoff = Backoff(
            base=rng.choice([0.0, 0.1, 1.0]), longest=5.0, rng=random.Random(rng.getrandbits(64))
        )
        return Retry(attempts=10_000, unlisted_attempts=10_000, backoff=backoff)

    def _tower(
        self, where: list[Storm], bad: frozenset[int] | None = None, again: set[int] | None = None
    ) -> Sink[Row]:
        """One destination with all of its decorators, up to the retry."""
        rng = self.rng
        per_item = rng.random() < 0.5
        storm = self._storm(self.bad if bad is None else bad, per_item=per_item, again=again)
        where.append(storm)
        layers: list[Any] = [Timeout(5.0)]
        if rng.random() < 0.7:
            breaker = CircuitBreaker(
                consecutive=rng.randint(2, 4),
                open_for=1.0,
                longest_open=8.0,
                when_open=rng.choice(["wait", "raise"]),
            )
            layers.append(breaker)
        if rng.random() < 0.3:
            layers.append(RateLimit(items_per_second=rng.choice([20.0, 200.0])))
        if not per_item:
            layers.append(Isolate())
        if rng.random() < 0.3:
            layers.append(Split(max_items=rng.randint(1, 4)))
        return stack(storm, *layers, self._retry())

    def plain(self) -> Sink[Row]:
        return self._tower(self.required)

    def fan_out(self) -> Sink[Row]:
        branches = [self._tower(self.required) for _ in range(self.rng.randint(1, 3))]
        extra = [self._tower(self.optional, again=set())] if self.rng.random() < 0.5 else []
        return FanOut(*branches, best_effort=extra, mode=self.rng.choice(["all", "sequential"]))

    def router(self) -> Sink[Row]:
        routes = {name: self._tower(self.required) for name in ("even", "odd")}
        return Router(lambda row: "odd" if row[0] % 2 else "even", routes)

    def combined(self) -> Sink[Row]:
        return Combine(
            self._tower(self.required),
            key=lambda row: row[0] % KEYS,
            merge=lambda merged, row: merged + row,
        )

    def wanted_by(self, item: int) -> list[Storm]:
        """The destinations that should receive it."""
        if self.name == "router":
            return [self.required[item % 2]]
        return self.required


SHAPES: dict[str, Callable[[Shape], Sink[Row]]] = {
    "plain": Shape.plain,
    "fan out": Shape.fan_out,
    "router": Shape.router,
    "combine": Shape.combined,
}
