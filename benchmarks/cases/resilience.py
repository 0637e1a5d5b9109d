"""Retry and circuit breaker, compared with libraries for functions: the cost of a call in processor
time, since nothing waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import tenacity

from sluicegate import Batch, CircuitBreaker, Retry, RowBatch, send, stack

from ..feeds import SIZE
from ..harness import Case, CaseUnavailableError, Unit, placed
from ..stopwatch import Clock, Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from sluicegate.sinks import Decorator

    from ..harness import Contender, Turn

    Calls = Callable[[int], Awaitable[None]]

US_PER_CALL = Unit("us per call", 1e6)
FAILURES = 2
OURS, TENACITY, STAMINA, PURGATORY = "Sluicegate", "tenacity", "stamina", "purgatory"
BARE, WELL, FAILING, BREAKER = (
    "no decorator",
    "retry, all goes well",
    f"retry, {FAILURES} failures first",
    "breaker, all goes well",
)


class FailingError(Exception):
    """An error that is retried."""


class Destination:
    """A destination that fails `failures` times before each success."""

    def __init__(self, failures: int = 0) -> None:
        self._failures = self._left = failures
        self.done = 0

    async def write(self, batch: Batch[int]) -> None:
        await self.call()

    async def call(self) -> None:
        if self._left:
            self._left -= 1
            raise FailingError
        self._left = self._failures
        self.done += 1


def _turn(count: int, destination: Destination, calls: Calls) -> Turn:
    async def turn() -> Took:
        before = destination.done
        watch = Stopwatch()
        await calls(count)
        took = watch.read()
        if destination.done - before != count:
            raise AssertionError(f"{destination.done - before} of {count} calls arrived")
        return took

    return lambda: asyncio.run(turn())


def _ours(count: int, size: int, *decorators: Decorator[int], failures: int = 0) -> Turn:
    items = tuple(range(size))
    destination = Destination(failures)

    async def calls(times: int) -> None:
        sink = stack(destination, *decorators)
        for _ in range(times):
            if errors := await send(sink, RowBatch(items)):
                raise AssertionError(f"a call failed: {errors}")

    return _turn(count, destination, calls)


def _function(
    count: int,
    decorate: Callable[[Callable[[], Awaitable[None]]], Callable[[], Awaitable[None]]],
    failures: int = 0,
) -> Turn:
    destination = Destination(failures)
    call = decorate(destination.call)

    async def calls(times: int) -> None:
        for _ in range(times):
            await call()

    return _turn(count, destination, calls)


def _with_purgatory(count: int) -> Turn:
    from purgatory import AsyncCircuitBreakerFactory

    destination = Destination()

    async def calls(times: int) -> None:
        factory = AsyncCircuitBreakerFactory()
        for _ in range(times):
            async with await factory.get_breaker("destination"):
                await destination.call()

    return _turn(count, destination, calls)


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    try:
        import purgatory  # noqa: F401
        import stamina
    except ImportError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    hooks = stamina.instrumentation.get_on_retry_hooks()
    stamina.instrumentation.set_on_retry_hooks([])  # the peers do not report a retry either
    by_tenacity = tenacity.retry(
        stop=tenacity.stop_after_attempt(5), retry=tenacity.retry_if_exception_type(FailingError)
    )
    by_stamina = stamina.retry(
        on=FailingError, attempts=5, timeout=None, wait_initial=0, wait_max=0, wait_jitter=0
    )
    no_wait = tenacity.wait_none()
    try:
        yield (
            placed(f"{OURS}, a batch of 1", BARE, _ours(count, 1), ours=True),
            placed(f"{OURS}, a batch of {SIZE}", BARE, _ours(count, SIZE), ours=True),
            placed(f"{OURS}, a batch of 1", WELL, _ours(count, 1, Retry()), ours=True),
            placed(f"{OURS}, a batch of {SIZE}", WELL, _ours(count, SIZE, Retry()), ours=True),
            placed(TENACITY, WELL, _function(count, by_tenacity)),
            placed(STAMINA, WELL, _function(count, by_stamina)),
            placed(
                f"{OURS}, a batch of 1",
                FAILING,
                _ours(count, 1, Retry(backoff=no_wait), failures=FAILURES),
                ours=True,
            ),
            placed(
                f"{OURS}, a batch of {SIZE}",
                FAILING,
                _ours(count, SIZE, Retry(backoff=no_wait), failures=FAILURES),
                ours=True,
            ),
            placed(TENACITY, FAILING, _function(count, by_tenacity, FAILURES)),
            placed(STAMINA, FAILING, _function(count, by_stamina, FAILURES)),
            placed(f"{OURS}, a batch of 1", BREAKER, _ours(count, 1, CircuitBreaker()), ours=True),
            placed(
                f"{OURS}, a batch of {SIZE}",
                BREAKER,
                _ours(count, SIZE, CircuitBreaker()),
                ours=True,
            ),
            placed(PURGATORY, BREAKER, _with_purgatory(count)),
        )
    finally:
        stamina.instrumentation.set_on_retry_hooks(hooks)


CASE = Case(
    name="resilience",
    title="One call through a retry or a circuit breaker",
    prepare=prepare,
    items=1_000,
    quick_items=10,
    unit=US_PER_CALL,
    by=Clock.PROCESSOR,
    peers=(TENACITY, PURGATORY),
    along="",
)
