"""An event loop whose time is its own.

`time()` is the moment's, so every timeout on the loop is virtual, third-party code included. The
loop asks its selector to wait only when no callback is ready; the selector asks `decide` what
happens instead, and carries it out. The rules stand in `_moment.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import selectors
from typing import TYPE_CHECKING, Any, cast

from ._describe import describe
from ._moment import Act, Holders, Moment, WouldHang, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from selectors import SelectorKey

    from _typeshed import FileDescriptorLike


class VirtualSelector(selectors.BaseSelector):
    """The real selector, asked without waiting wherever time can move instead."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.loop: VirtualLoop | None = None

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """What is ready. Where the loop would wait, time moves first; once round the loop per
        call.
        """
        loop = self.loop
        if loop is None:
            return self._real.select(timeout)
        holders = loop.moment.holders(
            sockets=len(self.get_map()) - 1
        )  # the loop's own wake-up pipe is always there
        came_true = loop.moment.look()
        events = self._real.select(0)
        if events:
            loop.moment.rounds = 0
            return events
        loop.count_round()
        if timeout == 0 or came_true or not loop.move_time(holders):
            return events
        return self._wait(loop, holders)

    def _wait(self, loop: VirtualLoop, holders: Holders) -> list[tuple[SelectorKey, int]]:
        """Wait in real time for a thread or a socket, bounded."""
        events = self._real.select(loop.moment.patience)
        if not events:
            loop.hang(
                f"nothing came in {loop.moment.patience} s of real time from {holders}, which "
                "keep time from moving by itself"
            )
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop on a `Moment`'s time."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        selector = VirtualSelector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        """Virtual seconds."""
        return self.moment.time

    @property
    def _clock_resolution(self) -> float:
        """The least that makes the loop fire a timer at its exact time, and none before."""
        return math.ulp(self.moment.time)

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        """The base class measures the real clock's; ours is exact."""

    def timers(self) -> list[asyncio.TimerHandle]:
        """The timers that are set and not cancelled."""
        return [handle for handle in self._heap() if not handle.cancelled()]

    def _heap(self) -> list[asyncio.TimerHandle]:
        return cast("list[asyncio.TimerHandle]", getattr(self, "_scheduled"))  # noqa: B009  # the loop's only list of timers

    def move_time(self, holders: Holders) -> bool:
        """Nothing is ready: do what `decide` says. Whether the loop is to wait in real time."""
        moment = self.moment
        heap = self._heap()  # the loop has just removed cancelled timers from its head
        move = moment.next_move()
        act, when = decide(
            heap[0].when() if heap else None, move, holders, autojump=moment.autojump
        )
        if act is Act.HANG:
            self.hang(
                f"time stands still at {moment.time} (autojump is off)"
                if heap
                else "no timer is set"
            )
        elif act is not Act.WAIT:
            moment.set_time(when)
            if act is Act.REACH and move is not None:
                move.done.set_result(None)
        return act is Act.WAIT

    def count_round(self) -> None:
        """One more round without anything from outside; too many mean that it never ends."""
        self.moment.rounds += 1
        if self.moment.rounds > self.moment.max_rounds:
            self.moment.rounds = 0
            raise WouldHang(
                f"after {self.moment.max_rounds} rounds of the loop something is still to do: "
                "a task that yields, or a timer that is set "
                f"again, for ever? The time is {self.time()}\n{describe(self, self.timers())}"
            )

    def hang(self, why: str) -> None:
        """Tell those who wait for a predicate, or else end the run, with a list of what waits."""
        message = f"everything waits, and {why}\n{describe(self, self.timers())}"
        watches = [watch for watch in self.moment.watches if not watch.done.done()]
        if not watches:
            raise WouldHang(message)
        for watch in watches:
            watch.done.set_exception(WouldHang(f"{watch.predicate!r} is still false: {message}"))

    def run_in_executor(  # type: ignore[override]  # typeshed's *Ts
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """As the base class; time does not jump until the call has ended, cancelled or not."""
        self._check_closed()  # type: ignore[attr-defined]  # as the base class does
        call: concurrent.futures.Future[Any] = (executor or self._default_pool()).submit(
            func, *args
        )
        self.moment.hold(threads=1)
        result: asyncio.Future[Any] = asyncio.wrap_future(call, loop=self)
        call.add_done_callback(
            lambda _: self.let_go(threads=1)
        )  # after the result is on its way to the loop
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
        """Somebody holds the time no longer: wake the loop to look again. Any thread may call
        it.
        """
        self.moment.hold(threads=-threads, external=-external)
        try:
            self.call_soon_threadsafe(_nothing)
        except RuntimeError:
            pass  # the loop is closed, and nobody waits


def _nothing() -> None:
    """A callback that only wakes the loop."""
