"""A destination with prescribed behaviour that records what really happened."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluicegate import (
    Outcome,
    PermanentError,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    WriteResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sluicegate import Batch

ERRORS: dict[str, Callable[[], Exception]] = {
    "transient": lambda: TransientError("scripted"),
    "permanent": lambda: PermanentError("scripted"),
    "throttled": lambda: ThrottledError("scripted", retry_after=2.0),
    "unavailable": lambda: UnavailableError("scripted"),
    "unlisted": lambda: ZeroDivisionError("scripted"),
}


@dataclass(frozen=True, slots=True)
class Act:
    """The behaviour of one write.

    `ok`; `fail` (nothing takes effect); `partial` (items whose number modulo 3 is in `which` fail);
    `half` (the first half is settled, then it fails); `unknown` (takes effect for `which` and
    reports an unknown outcome); `hang` (takes effect for `which`, never returns); `short` (takes
    effect, but the result lacks one item); `nonsense` (takes effect and returns a word); `gate`
    (waits for `open_gate`, then takes effect). Before that it takes `seconds`, and ignores
    cancellations meanwhile if it is `deaf`.
    """

    kind: str = "ok"
    seconds: float = 0.0
    deaf: bool = False
    error: str = "transient"
    which: frozenset[int] = frozenset()

    def failure(self) -> Exception:
        """A new instance of its error."""
        return ERRORS[self.error]()

    async def last(self) -> None:
        """Take the prescribed time, ignoring cancellations if it is deaf."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        while loop.time() < until:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError:
                if not self.deaf:
                    raise


@dataclass(slots=True, eq=False)
class Write:
    """A call of the destination."""

    batch_id: str
    items: tuple[int, ...]
    act: Act
    started: float
    told: str = "running"
    """The end of the call as the caller sees it: `ok`, `error`, `unknown` or `cancelled`."""

    def runs_since(self, when: float) -> bool:
        """Whether it still runs and began before that time."""
        return self.told == "running" and self.started < when

    def hangs_since(self, when: float) -> bool:
        """As `runs_since`, and a cancellation would have ended it."""
        return self.runs_since(when) and not self.act.deaf


class Destination:
    """`applied` is the ground truth; `broken` contains the violated rules of the interface."""

    def __init__(
        self, *, default: Act, workers: int, max_items: int, total_order: bool = True
    ) -> None:
        self.script: deque[Act] = deque()
        self.default = default
        self.writes: list[Write] = []
        self.applied: list[int] = []
        self.running = 0
        self.broken: list[str] = []
        self.is_settled: Callable[[int], bool] = lambda item: False
        self._workers = workers
        self._total_order = total_order and workers == 1
        self._max_items = max_items
        self._gates: list[asyncio.Future[None]] = []
        self._ids: list[str] = []

    @property
    def gated(self) -> int:
        """Writes that wait for their gate."""
        return sum(1 for gate in self._gates if not gate.done())

    def open_gate(self) -> None:
        """Release the write that has waited longest."""
        for gate in self._gates:
            if not gate.done():
                gate.set_result(None)
                return

    async def write(self, batch: Batch[int]) -> WriteResult | None:
        act = self.script.popleft() if self.script else self.default
        write = Write(batch.id, tuple(batch), act, asyncio.get_running_loop().time())
        self.writes.append(write)
        self.running += 1
        self.check(write)
        try:
            result = await self._perform(write.act, batch)
            write.told = "ok"
            return result
        except asyncio.CancelledError:
            write.told = "cancelled"
            raise
        except UnknownOutcomeError:
            write.told = "unknown"
            raise
        except Exception:
            write.told = "error"
            raise
        finally:
            self.running -= 1

    def check(self, write: Write) -> None:
        """Check whether a write may begin."""
        if not 1 <= len(write.items) <= self._max_items:
            self.broken.append(f"a batch of {len(write.items)} items")
        again = [item for item in write.items if self.is_settled(item)]
        if again:
            self.broken.append(f"items {again} were settled and are sent again")
        if self.running > self._workers:
            self.broken.append(f"{self.running} writes at once")
        if write.batch_id not in self._ids[-1:]:
            if self._total_order and write.batch_id in self._ids:
                self.broken.append(f"another batch came between the tries of {write.items}")
            self._ids.append(write.batch_id)

    async def _perform(self, act: Act, batch: Batch[int]) -> WriteResult | None:
        chosen = [index for index, item in enumerate(batch) if item % 3 in act.which]
        if act.kind == "hang":
            self._apply(batch, self.reached(batch, chosen))
            await asyncio.get_running_loop().create_future()
        await act.last()
        if act.kind == "gate":
            gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._gates.append(gate)
            await gate
        if act.kind == "fail":
            raise act.failure()
        if act.kind == "half":
            half = range((len(batch) + 1) // 2)
            self._apply(batch, half)
            batch.settle(half, Outcome.DELIVERED)
            raise act.failure()
        if act.kind == "unknown":
            self._apply(batch, self.reached(batch, chosen))
            raise UnknownOutcomeError("scripted")
        if act.kind == "partial":
            good = self.reached(
                batch, [index for index in range(len(batch)) if index not in chosen]
            )
            self._apply(batch, good)
            return WriteResult.failed(
                batch, {index: act.failure() for index in range(len(batch)) if index not in good}
            )
        self._apply(batch, range(len(batch)))
        if act.kind == "short":
            return WriteResult.from_outcomes(batch, [None] * (len(batch) - 1))
        return "nonsense" if act.kind == "nonsense" else None  # type: ignore[return-value]  # what a careless sink may do

    def reached(self, batch: Batch[int], indices: Sequence[int]) -> Sequence[int]:
        """The indices of which an effect does not depend on others: here, all of them."""
        return indices

    def _apply(self, batch: Batch[int], indices: Iterable[int]) -> None:
        self.applied.extend(batch[index] for index in indices)

    def may_differ(self, item: int) -> bool:
        """Whether a write of this item ended with an unknown effect."""
        return any(item in write.items and _leaves_doubt(write) for write in self.writes)


def _leaves_doubt(write: Write) -> bool:
    return (
        write.told in {"unknown", "cancelled", "running"}
        or write.act.kind in {"short", "nonsense"}
        or write.act.deaf
    )
