"""The interjections of one run: their due times, and their insertion into the order of their
partitions.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from ..._core.clock import Signal, wait_until
from ..._core.errors import ConfigError
from .calling import as_function
from .interjections import Interjection, NotAssigned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..._core.source import TopicPartition
    from ..claim import Claim
    from ..engine import Engine
    from .context import EventContext
    from .events import Events
    from .interjections import Interjector


class Interjecting:
    """The interjections in the partitions of one consumer."""

    def __init__(self, engine: Engine, events: Events, interjectors: Sequence[Interjector]) -> None:
        self._claims = engine.claims
        self._commons = engine.commons
        self._events = events
        self._interjectors = tuple(interjectors)
        self._due: dict[tuple[Claim, Interjector], float] = {}
        """Due time of each interjection that is not running."""
        self._known: dict[Claim, None] = {}
        self._changed = Signal()

    async def keep(self) -> None:
        """Start interjections when they are due, until cancelled."""
        clock, claims_changed = self._commons.clock, self._commons.signals.claims
        while True:
            now = clock.now()
            self._look(now)
            for (claim, interjector), due in [*self._due.items()]:
                if due <= now:
                    del self._due[claim, interjector]
                    self._start(claim, interjector)
            due = min(self._due.values(), default=math.inf)
            await wait_until(clock, due, claims_changed, self._changed)

    def _look(self, now: float) -> None:
        """Detect claims that have begun or ended."""
        open_claims = dict.fromkeys([claim for claim in self._claims if not claim.is_closing])
        self._events.stores.close_ended()
        for claim in self._known:
            if claim not in open_claims:
                for interjector in self._interjectors:
                    self._due.pop((claim, interjector), None)
        for claim in open_claims:
            if claim not in self._known:
                for interjector in self._interjectors:
                    self._due[claim, interjector] = now + interjector.wait()
        self._known = open_claims

    def _start(self, claim: Claim, interjector: Interjector) -> None:
        done = self._put(claim, interjector.call)

        def again(done: asyncio.Future[None]) -> None:
            done.exception()  # it is already logged
            if claim in self._known:
                self._due[claim, interjector] = self._commons.clock.now() + interjector.wait()
                self._changed.fire()

        done.add_done_callback(again)

    def _put(
        self, claim: Claim, call: Callable[[EventContext], Awaitable[object]]
    ) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events.interject(Interjection(claim, done), call)
        return done

    async def now(
        self, partition: TopicPartition | None, function: Callable[[EventContext], object]
    ) -> None:
        """Interject once, in one partition or in all concurrently; suspend until that is complete.

        Raises `NotAssigned`, any exception of the function, and `ConfigError` in a turn of the
        partition.
        """
        call = as_function("function", function, "a context", takes=1)
        claims = [each for each in self._claims if not each.is_closing]
        if partition is not None:
            claims = [each for each in claims if each.partition == partition]
            if not claims:
                raise NotAssigned(f"{partition} is not assigned to {self._commons.name}")
        for message in self._events.workers.running_here():
            if message.claim in claims:
                rule = "it would wait for the end of this turn; do its work here, or call it from a task"
                raise ConfigError(f"interject() was called in the turn of {message!r}: {rule}")
        await asyncio.gather(*[self._put(claim, call) for claim in claims])
