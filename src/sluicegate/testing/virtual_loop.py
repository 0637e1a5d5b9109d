"""An event loop on virtual time.

`time()` is that of the `Moment`, so every timeout on the loop is virtual, in third-party code too.
The loop polls its selector with a timeout only when no callback is ready; the selector then
performs the act that `decide` returns:

1. `decide` is called only when no callback is ready. It returns the next act and changes nothing.
2. A manual move takes precedence. Executor calls in progress delay it only if it waits for threads.
3. Everything that may act from outside (a thread, an external activity, a socket) stops automatic
   jumps: the loop waits in real time, for a bounded time.
4. A jump goes to the exact time of the next timer. Without a timer nothing can wake the loop: that
   is a hang.
5. A holder wakes the loop after its last effect on it, and the loop reads the holders before it
   polls. So no event between the two is missed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import enum
import math
import selectors
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from selectors import SelectorKey

MAX_ROUNDS = 1_000_000
"""Rounds of the loop without an outside event, after which it counts as endless."""
CLOSING_ROUNDS = 10_000
"""Rounds without an outside event that count as endless in `unwinding`."""


class VirtualSelector(selectors.DefaultSelector):
    """A real selector, polled without waiting whenever time can move instead."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: VirtualLoop | None = None

    def serve(self, loop: VirtualLoop) -> None:
        """Move the time of `loop`, which must be fully constructed."""
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Return the ready sockets; if the loop would wait, move time first. One round per call."""
        loop = self._loop
        if loop is None:
            return super().select(timeout)
        # the loop's own wake-up pipe is always registered
        holders = loop.moment.holders(sockets=len(self.get_map()) - 1)
        came_true = loop.moment.look()
        events = super().select(0)
        if events:
            loop.moment.outside_event()
            return events
        loop.count_round()
        if timeout == 0 or came_true or not loop.move_time(holders):
            return events
        return self._wait(loop, holders)

    def _wait(self, loop: VirtualLoop, holders: Holders) -> list[tuple[SelectorKey, int]]:
        """Wait in real time for a thread or a socket, up to the clock's patience."""
        events = super().select(loop.moment.patience)
        if not events:
            loop.hang(
                f"no event in {loop.moment.patience} s of real time from {holders}, which "
                "keep time from moving automatically"
            )
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop on a `Moment`'s time."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        selector = VirtualSelector()
        super().__init__(selector)
        selector.serve(self)

    def time(self) -> float:
        """Virtual seconds."""
        return self.moment.time

    @property
    def _clock_resolution(self) -> float:
        """The smallest value that makes the loop fire timers at their exact times, none earlier."""
        return math.ulp(self.moment.time)

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        """Ignore the base class's value, measured on the real clock; this one is exact."""

    def timers(self) -> list[asyncio.TimerHandle]:
        """The pending timers."""
        return [handle for handle in self._heap() if not handle.cancelled()]

    def _heap(self) -> list[asyncio.TimerHandle]:
        return cast("list[asyncio.TimerHandle]", getattr(self, "_scheduled"))  # noqa: B009  # the loop's only list of timers

    def move_time(self, holders: Holders) -> bool:
        """Perform the act of `decide`; return whether the loop must wait in real time."""
        moment = self.moment
        heap = self._heap()  # the loop has just removed cancelled timers from its head
        move = moment.next_move()
        act, when = decide(heap[0].when() if heap else None, move, holders)
        if act is Act.HANG:
            self.hang("no timer is set")
        elif act is not Act.WAIT:
            moment.set_time(when)
            if act is Act.REACH and move is not None:
                move.done.set_result(None)
        return act is Act.WAIT

    def count_round(self) -> None:
        """Count one round without an outside event. Raises `WouldHang` after too many."""
        if self.moment.is_endless():
            self.moment.outside_event()
            raise WouldHang(
                f"after {self.moment.max_rounds} rounds the loop is still busy: does a task yield "
                "forever, or a timer restart itself "
                f"forever? The time is {self.time()}\n{describe(self, self.timers())}"
            )

    def hang(self, why: str) -> None:
        """Fail the waits for a predicate, or else the run, with a list of all waiting tasks."""
        message = f"everything waits, and {why}\n{describe(self, self.timers())}"
        watches = [watch for watch in self.moment.watches if not watch.done.done()]
        if not watches:
            raise WouldHang(message)
        for watch in watches:
            watch.done.set_exception(WouldHang(f"{watch.predicate!r} is still false: {message}"))

    def run_in_executor(  # type: ignore[override]  # typeshed's *Ts
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call the base class; time does not jump until the call has ended, cancelled or not."""
        self._check_closed()  # type: ignore[attr-defined]  # as the base class does
        call: concurrent.futures.Future[Any] = (executor or self._default_pool()).submit(
            func, *args
        )
        self.moment.hold(threads=1)
        result: asyncio.Future[Any] = asyncio.wrap_future(call, loop=self)
        # registered after the base class's callback, so the result is already scheduled by then
        call.add_done_callback(lambda _: self.let_go(threads=1))
        return result

    def _default_pool(self) -> concurrent.futures.Executor:
        self._check_default_executor()  # type: ignore[attr-defined]  # as the base class does
        pool = cast("concurrent.futures.Executor | None", getattr(self, "_default_executor"))  # noqa: B009  # the base class's
        if pool is None:
            fresh = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="asyncio")
            self.set_default_executor(fresh)
            return fresh
        return pool

    def let_go(self, *, threads: int = 0, external: int = 0) -> None:
        """Release holders of the time, and wake the loop to decide again. Thread-safe."""
        self.moment.hold(threads=-threads, external=-external)
        try:
            self.call_soon_threadsafe(_nothing)
        except RuntimeError:
            pass  # the loop is closed, without waiters


def _nothing() -> None:
    """Only wake the loop."""


class WouldHang(AssertionError):  # named like an assertion of the test, not like an error
    """Everything waits and nothing can wake it, or the loop never becomes idle.

    The message lists the tasks and timers that exist.
    """


class Act(enum.Enum):
    """The next act of a loop with nothing ready."""

    JUMP = "set the time to that of the next timer"
    REACH = "set the time to the target of a manual move, which ends"
    WAIT = "wait in real time for an event from outside"
    HANG = "give up"


class Holders(NamedTuple):
    """Counts of the holders of time: everything that may still act on the loop from outside."""

    threads: int = 0
    external: int = 0
    sockets: int = 0

    def __str__(self) -> str:
        named = [
            f"{count} {name}"
            for name, count in zip(
                ("executor calls", "external activities", "sockets"), self, strict=True
            )
            if count
        ]
        return ", ".join(named)


@dataclass(slots=True, eq=False)
class TimeMove:
    """A manual move of time. It ends when the time is `target` and no callback is ready."""

    target: float
    waits_for_threads: bool
    done: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class Watch:
    """A wait until `predicate` is true."""

    predicate: Callable[[], object]
    done: asyncio.Future[None]

    def look(self) -> bool:
        """Check the predicate; return whether the wait ends, with its result or its error."""
        if self.done.done():
            return False
        try:
            if self.predicate():
                self.done.set_result(None)
        except Exception as error:
            self.done.set_exception(error)
        return self.done.done()


def decide(timer: float | None, move: TimeMove | None, holders: Holders) -> tuple[Act, float]:
    """Decide the next act when no callback is ready, and its time."""
    if move is not None and not (move.waits_for_threads and holders.threads):
        if timer is not None and timer <= move.target:
            return Act.JUMP, timer
        return Act.REACH, move.target
    if any(holders):
        return Act.WAIT, 0.0
    if timer is None:
        return Act.HANG, 0.0
    return Act.JUMP, timer


@dataclass(slots=True)
class Moment:
    """The time of one virtual loop, its holders and its waiters."""

    time: float
    patience: float = 10.0
    max_rounds: int = MAX_ROUNDS
    rounds: int = 0
    moves: list[TimeMove] = field(default_factory=list[TimeMove])
    watches: list[Watch] = field(default_factory=list[Watch])
    _threads: int = 0
    _external: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self, *, threads: int = 0, external: int = 0) -> None:
        """Count holders of the time; negative numbers release it. Thread-safe."""
        with self._lock:
            self._threads += threads
            self._external += external

    def holders(self, sockets: int) -> Holders:
        """The current holders."""
        with self._lock:
            return Holders(self._threads, self._external, sockets)

    def outside_event(self) -> None:
        """Restart the count of rounds."""
        self.rounds = 0

    def is_endless(self) -> bool:
        """Count a round without an outside event; return whether there are too many."""
        self.rounds += 1
        return self.rounds > self.max_rounds

    @contextmanager
    def unwinding(self) -> Generator[None]:
        """While inside, a few rounds suffice to count as endless."""
        before = self.max_rounds
        self.max_rounds = min(CLOSING_ROUNDS, before)
        self.rounds = 0
        try:
            yield
        finally:
            self.max_rounds = before

    def next_move(self) -> TimeMove | None:
        """The manual move with the earliest target."""
        return min(
            (move for move in self.moves if not move.done.done()),
            key=lambda move: move.target,
            default=None,
        )

    def set_time(self, when: float) -> None:
        """Set the time; it never goes back."""
        self.time = max(self.time, when)

    def look(self) -> bool:
        """Check every watched predicate; return whether one has just become true."""
        ended = [watch.look() for watch in tuple(self.watches)]  # all of them: a check has effects
        return any(ended)


def describe(loop: asyncio.AbstractEventLoop, timers: Iterable[asyncio.TimerHandle]) -> str:
    """Describe the tasks and timers of `loop`, one per line."""
    lines = sorted(f"  {task_line(task)}" for task in asyncio.all_tasks(loop))
    lines += [f"  {timer_line(timer)}" for timer in sorted(timers)]
    return "\n".join(lines) or "  (no task, no timer)"


def task_line(task: asyncio.Task[Any]) -> str:
    """Describe a task: its name, its coroutine and its suspended frames, outermost first."""
    coroutine = task.get_coro()
    name = getattr(coroutine, "__qualname__", repr(coroutine))
    return f"task {task.get_name()!r} running {name}: " + " > ".join(_places(task, coroutine))


def timer_line(timer: asyncio.TimerHandle) -> str:
    """Describe a timer: its time and its callback."""
    return f"timer at {timer.when()}: {timer!r}"


def _places(task: asyncio.Task[Any], coroutine: Any) -> Iterator[str]:
    if not task.get_stack(limit=1):
        yield "not started"
        return
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
