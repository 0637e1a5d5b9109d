"""State of a virtual loop's time, and the rules that move it.

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

import enum
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

MAX_ROUNDS = 1_000_000
"""Rounds of the loop without an outside event, after which it counts as endless."""
CLOSING_ROUNDS = 10_000


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


def decide(
    timer: float | None, move: TimeMove | None, holders: Holders, *, autojump: bool
) -> tuple[Act, float]:
    """Decide the next act when no callback is ready, and its time."""
    if move is not None and not (move.waits_for_threads and holders.threads):
        if timer is not None and timer <= move.target:
            return Act.JUMP, timer
        return Act.REACH, move.target
    if any(holders):
        return Act.WAIT, 0.0
    if timer is None or not autojump:
        return Act.HANG, 0.0
    return Act.JUMP, timer


@dataclass(slots=True)
class Moment:
    """The time of one virtual loop, its holders and its waiters."""

    time: float
    autojump: bool = True
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

    def allow_jumps(self) -> None:
        """Let time move automatically from now on."""
        self.autojump = True

    @contextmanager
    def unwinding(self) -> Generator[None]:
        """While inside, time moves automatically, and a few rounds suffice to count as endless."""
        before = self.autojump, self.max_rounds
        self.autojump, self.max_rounds = True, min(CLOSING_ROUNDS, self.max_rounds)
        self.rounds = 0
        try:
            yield
        finally:
            self.autojump, self.max_rounds = before

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
