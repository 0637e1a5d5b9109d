"""The table on the page about the order of decorators, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tenacity

from sluicegate import (
    Batch,
    Batcher,
    CircuitBreaker,
    DeadLetter,
    Limits,
    PermanentError,
    RefusedError,
    Retry,
    ThrottledError,
    Timeout,
    TransientError,
    UnavailableError,
    WriteResult,
    stack,
)
from sluicegate.sinks import MemorySink
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "failures.md"


class Destination:
    """A destination that works except for one kind of fault."""

    def __init__(self, event: str, clock: FakeClock) -> None:
        self.event = event
        self.clock = clock
        self.calls = 0

    async def write(self, batch: Batch[str]) -> WriteResult | None:
        self.calls += 1
        match self.event:
            case "refuses one item":
                return WriteResult.failed(
                    batch, {i: PermanentError("bad") for i, item in enumerate(batch) if item == "b"}
                )
            case "fails once" if self.calls == 1:
                raise TransientError("deadlock")
            case "keeps failing":
                raise TransientError("deadlock")
            case "is down for a minute" if self.clock.now() < 60:
                raise UnavailableError("refused")
            case "refuses every write for a minute" if self.clock.now() < 60:
                raise RefusedError("permission denied", repair="grant it")
            case "stays down until we stop":
                raise UnavailableError("refused")
            case "asks for a pause" if self.calls == 1:
                raise ThrottledError("slow down", retry_after=2.0)
            case "hangs once" if self.calls == 1:
                await self.clock.sleep(1000)
            case "keeps hanging":
                await self.clock.sleep(1000)
            case _:
                pass
        return None


EVENTS = [
    "refuses one item",
    "fails once",
    "keeps failing",
    "is down for a minute",
    "refuses every write for a minute",
    "stays down until we stop",
    "asks for a pause",
    "hangs once",
    "keeps hanging",
]
STACKS: dict[str, Callable[[], list[Any]]] = {
    "(nothing)": list,
    "Timeout, Retry": lambda: [Timeout(5), retry()],
    "Timeout, Retry, DeadLetter": lambda: [Timeout(5), retry(), DeadLetter(MemorySink())],
    "Timeout, CircuitBreaker, Retry, DeadLetter": lambda: [
        Timeout(5),
        CircuitBreaker(consecutive=2),
        retry(),
        DeadLetter(MemorySink()),
    ],
    "Timeout, DeadLetter, Retry": lambda: [Timeout(5), DeadLetter(MemorySink()), retry()],
    "Retry, Timeout": lambda: [retry(), Timeout(20)],
}


def retry() -> Retry:
    return Retry(attempts=3, backoff=tenacity.wait_fixed(1.0))


def happens(event: str, decorators: str) -> str:
    """The outcomes of the items `a` and `b`, and the number of calls of the destination."""
    with FakeClock() as clock:
        destination = Destination(event, clock)

        async def main() -> str:
            async with Batcher(
                stack(destination, *STACKS[decorators]()), limits=Limits(max_items=2)
            ) as batcher:
                receipts = [await batcher.submit(item) for item in "ab"]
                if event == "stays down until we stop":
                    await clock.sleep(30.0)
                    report = await batcher.shutdown(deadline=5.0)
                else:
                    await batcher.flush()
                    report = await batcher.shutdown()
                report.verify()
            outcomes = [
                receipt.outcome.value.replace("_", " ") for receipt in receipts if receipt.outcome
            ]
            return outcomes[0] if len({*outcomes}) == 1 else " / ".join(outcomes)

        outcomes = clock.run(main())
    return f"{outcomes}; {destination.calls}" if destination.calls < 4 else f"{outcomes}; more"


def table() -> str:
    """The table on the page."""
    lines = [
        "| the destination | " + " | ".join(f"`{name}`" for name in STACKS) + " |",
        "|---|" + "---|" * len(STACKS),
    ]
    lines += [
        "| " + " | ".join([event, *(happens(event, decorators) for decorators in STACKS)]) + " |"
        for event in EVENTS
    ]
    return "\n".join(lines)


@pytest.mark.filterwarnings("error", "ignore:a DeadLetter inside a Retry")
def test_the_page_tells_what_happens() -> None:
    """B-T21, B31: any order works, with the documented effects."""
    assert table() in PAGE.read_text()
