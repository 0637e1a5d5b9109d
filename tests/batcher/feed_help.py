"""Rows of claims, their receipts, and a scripted destination."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from sluicegate import Capabilities, Outcome
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from sluicegate import Batch, Batcher, WriteResult


class Row(NamedTuple):
    """Row `number` of a key, from a claim."""

    claim: str
    key: str
    number: int


@dataclass(eq=False)
class Slip:
    """The receipt of one row, or of several rows of one claim."""

    claim: str
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    causes: list[BaseException | None] = field(default_factory=list["BaseException | None"])

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        self.outcomes.append(outcome)
        self.causes.append(cause)


def key_of(row: Row) -> str:
    return row.key


def tenant_of(row: Row) -> str:
    return row.claim


def rows_of(claim: str, *keys: str, start: int = 0) -> list[Row]:
    return [Row(claim, key, number) for number, key in enumerate(keys, start)]


def slips_for(rows: Iterable[Row]) -> list[Slip]:
    return [Slip(row.claim) for row in rows]


def outcomes(slips: Iterable[Slip]) -> list[list[str]]:
    return [[outcome.value for outcome in slip.outcomes] for slip in slips]


def of_claim(claim: str) -> Callable[[Any], bool]:
    return lambda slip: slip.claim == claim


def on_virtual_time(main: Callable[[FakeClock], Coroutine[Any, Any, None]]) -> None:
    with FakeClock() as clock:
        clock.run(main(clock))


class Told:
    """Applies each write as `answers` says, in order: an error, seconds (a float), or an event to
    wait for. Without further answers it succeeds at once. If it is deaf, it ignores cancellations.
    """

    def __init__(self, *answers: Any, prefix_safe: bool = False, deaf: bool = False) -> None:
        self.capabilities = Capabilities(key_prefix_safe=prefix_safe)
        self.answers = list(answers)
        self.deaf = deaf
        self.begun: list[tuple[Any, ...]] = []
        self.applied: list[Any] = []
        self.doubted: list[list[Any]] = []

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        self.begun.append(tuple(batch))
        self.doubted.append([batch[i] for i in sorted(batch.maybe_applied)])
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, (int, float)):
            await self._held(asyncio.sleep(answer))
        elif isinstance(answer, asyncio.Event):
            await self._held(answer.wait())
        elif isinstance(answer, tuple):
            event, error = answer
            await event.wait()
            raise error
        elif callable(answer):
            return cast("WriteResult | None", answer(batch))
        self.applied.extend(batch)
        return None

    async def _held(self, wait: Coroutine[Any, Any, object]) -> None:
        if not self.deaf:
            await wait
            return
        task = asyncio.ensure_future(wait)
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                continue


async def steps(count: int = 10) -> None:
    """Let the batcher's tasks run for some loop steps."""
    for _ in range(count):
        await asyncio.sleep(0)


def is_empty(batcher: Batcher[Any]) -> bool:
    """Whether no item is pending, and no key is busy or held."""
    stats = batcher.stats()
    return not (batcher.tally().inside or stats.held_keys)
