"""The state of a virtual loop's time, and what moves it.

1. `decide` is asked only when no callback is ready. It says what happens next and changes nothing.
2. A move by hand goes before everything else; threads that are out hold it back only if it waits
   for them.
3. Whatever may act from outside (a thread, an external activity, a socket) stops automatic jumps:
   the loop waits in real time, bounded.
4. A jump goes to the exact time of the next timer. With nothing to jump to, nobody would ever wake:
   that is a hang.
5. Who stops holding the time wakes the loop after its last effect on it, and the loop reads who
   holds the time before it polls; so nothing is missed in between.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

MAX_ROUNDS = 1_000_000
"""Rounds of the loop without anything from outside, after which it counts as one that never
ends.
"""


class WouldHang(AssertionError):  # it says what would happen, and is an assertion of the test's
    """Everything waits and nothing can wake it, or nothing ever comes to rest. The message lists
    the tasks and timers that are there.
    """


class Act(enum.Enum):
    """What a loop with nothing ready does next."""

    JUMP = "set the time to that of the next timer"
    REACH = "set the time to the target of a move by hand, which ends"
    WAIT = "wait in real time for something from outside"
    HANG = "give up"


class Holders(NamedTuple):
    """Who may still act on the loop from outside."""

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
class Move:
    """A move of time by hand: ends when the time is `target` and nothing is ready."""

    target: float
    waits_for_threads: bool
    done: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class Watch:
    """Somebody waits for `predicate` to come true."""

    predicate: Callable[[], object]
    done: asyncio.Future[None]

    def look(self) -> bool:
        """Whether the wait ends now, with the predicate's error if it raises one."""
        if self.done.done():
            return False
        try:
            if self.predicate():
                self.done.set_result(None)
        except Exception as error:
            self.done.set_exception(error)
        return self.done.done()


def decide(
    timer: float | None, move: Move | None, holders: Holders, *, autojump: bool
) -> tuple[Act, float]:
    """What comes next when nothing is ready, and at what time."""
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
    """The time of one virtual loop, who holds it, and who waits for it."""

    time: float
    autojump: bool = True
    patience: float = 10.0
    max_rounds: int = MAX_ROUNDS
    rounds: int = 0
    moves: list[Move] = field(default_factory=list[Move])
    watches: list[Watch] = field(default_factory=list[Watch])
    _threads: int = 0
    _external: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self, *, threads: int = 0, external: int = 0) -> None:
        """Count who holds the time; negative numbers let it go. Any thread may call it."""
        with self._lock:
            self._threads += threads
            self._external += external

    def holders(self, sockets: int) -> Holders:
        """Who holds the time now."""
        with self._lock:
            return Holders(self._threads, self._external, sockets)

    def next_move(self) -> Move | None:
        """The move by hand that ends first."""
        return min(
            (move for move in self.moves if not move.done.done()),
            key=lambda move: move.target,
            default=None,
        )

    def set_time(self, when: float) -> None:
        """Time never goes back."""
        self.time = max(self.time, when)

    def look(self) -> bool:
        """Whether a watched predicate has come true just now."""
        ended = [
            watch.look() for watch in tuple(self.watches)
        ]  # all of them: each look has an effect
        return any(ended)
