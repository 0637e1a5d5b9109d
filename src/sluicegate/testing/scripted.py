"""Scripted sinks: destinations that follow a test's script and record every call.

`applied` is the ground truth: the items that took effect, whatever result was returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from .._core.clock import LOOP_CLOCK
from .._core.errors import TransientError
from .._core.sink import WriteResult

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from .._core.batch import Batch

T = TypeVar("T")


@dataclass(slots=True)
class Call(Generic[T]):
    """One call of a scripted sink. Times are the loop's, in seconds."""

    items: tuple[T, ...]
    reason: str
    attempt: int
    write_key: str
    started: float
    ended: float | None = None
    """The end; `None` while it runs."""
    error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended, self.error = LOOP_CLOCK.now(), error


@dataclass(slots=True)
class Scene(Generic[T]):
    """The input of a step: the batch, and a function that applies items."""

    batch: Batch[T]
    apply: Callable[[Iterable[int]], None]

    def apply_all(self) -> None:
        """Apply every item."""
        self.apply(range(len(self.batch)))


Step = Callable[[Scene[T]], Awaitable[WriteResult | None]]
"""One write of a scripted sink."""


def ok() -> Step[T]:
    """Apply every item."""

    async def step(scene: Scene[T]) -> None:
        scene.apply_all()

    return step


def fail(error: BaseException | None = None) -> Step[T]:
    """Apply nothing; raise `error` (default: a `TransientError`)."""

    async def step(scene: Scene[T]) -> None:
        raise TransientError("scripted") if error is None else error

    return step


def partial(errors: Mapping[int, BaseException]) -> Step[T]:
    """Fail the items at these indices with their errors, if the batch has them; apply the rest."""

    async def step(scene: Scene[T]) -> WriteResult:
        failed = {index: error for index, error in errors.items() if index < len(scene.batch)}
        scene.apply(index for index in range(len(scene.batch)) if index not in failed)
        return WriteResult.failed(scene.batch, failed)

    return step


def slow(seconds: float, then: Step[T] | None = None) -> Step[T]:
    """Wait `seconds`, then continue with another step (default: `ok`)."""

    async def step(scene: Scene[T]) -> WriteResult | None:
        await LOOP_CLOCK.sleep(seconds)
        following: Step[T] = ok() if then is None else then
        return await following(scene)

    return step


def hang() -> Step[T]:
    """Never return; end on cancellation."""

    async def step(scene: Scene[T]) -> None:
        await asyncio.get_running_loop().create_future()

    return step


def ignore_cancel(seconds: float, then: Step[T] | None = None) -> Step[T]:
    """Ignore cancellations for `seconds`, then continue with another step (default: `ok`)."""

    async def step(scene: Scene[T]) -> WriteResult | None:
        until = LOOP_CLOCK.now() + seconds
        while LOOP_CLOCK.now() < until:
            try:
                await LOOP_CLOCK.sleep(until - LOOP_CLOCK.now())
            except asyncio.CancelledError:
                continue
        following: Step[T] = ok() if then is None else then
        return await following(scene)

    return step


def answer(count: int) -> Step[T]:
    """Apply every item, but return a result for `count` items, whatever the batch's size."""

    async def step(scene: Scene[T]) -> WriteResult:
        scene.apply_all()
        return WriteResult.from_outcomes(scene.batch, [None] * count)

    return step


@dataclass(eq=False)
class ScriptedSink(Generic[T]):
    """A sink that performs one step per call, in order, then `default` (apply every item).

    `calls` is the trace of flushes; `applied` the items that took effect, in order, with repeats.

    Examples:
        >>> import asyncio
        >>> from sluicegate import RowBatch, UnavailableError, send
        >>> from sluicegate.testing import ScriptedSink, fail, ok
        >>> sink = ScriptedSink([fail(UnavailableError("down")), ok()])
        >>> asyncio.run(send(sink, RowBatch("ab")))
        {0: UnavailableError('down'), 1: UnavailableError('down')}
        >>> asyncio.run(send(sink, RowBatch("ab")))
        {}
    """

    steps: Iterable[Step[T]] = ()
    default: Step[T] | None = None
    calls: list[Call[T]] = field(default_factory=list["Call[T]"], init=False)
    applied: list[T] = field(default_factory=list[T], init=False)
    running: int = field(default=0, init=False)
    most_running: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._script = list(self.steps)
        self._called = asyncio.Event()

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        """Perform the next step."""
        call = Call(
            tuple(batch), batch.reason.value, batch.attempt, batch.write_key, LOOP_CLOCK.now()
        )
        self.calls.append(call)
        self._called.set()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        step: Step[T] = self._script.pop(0) if self._script else self.default or ok()
        scene = Scene(batch, lambda which: self.applied.extend(batch[index] for index in which))
        try:
            with call:
                return await step(scene)
        finally:
            self.running -= 1

    async def wait_for_call(self, number: int = 1) -> Call[T]:
        """Suspend until the sink has been called `number` times in total; return that call."""
        while len(self.calls) < number:
            self._called.clear()
            await self._called.wait()
        return self.calls[number - 1]

    @property
    def trace(self) -> list[tuple[float, tuple[T, ...], str]]:
        """The start, items and seal reason of each write."""
        return [(call.started, call.items, call.reason) for call in self.calls]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.calls)} calls, {len(self.applied)} items applied)"


class FakeSink(ScriptedSink[T]):
    """Accepts everything."""

    def __init__(self) -> None:
        super().__init__()


class SlowSink(ScriptedSink[T]):
    """Accepts everything, `seconds` per write."""

    def __init__(self, seconds: float) -> None:
        super().__init__(default=slow(seconds))


class FlakySink(ScriptedSink[T]):
    """Fails `failures` times with `error` (default: a `TransientError`), then accepts all."""

    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        super().__init__([fail(error) for _ in range(failures)])


class BlockingSink(ScriptedSink[T]):
    """Every write waits until `release` is called, then accepts everything."""

    def __init__(self) -> None:
        self._gate = asyncio.Event()
        super().__init__(default=self._wait)

    async def _wait(self, scene: Scene[T]) -> None:
        await self._gate.wait()
        scene.apply_all()

    def release(self) -> None:
        """Let all writes continue, waiting and future ones."""
        self._gate.set()
