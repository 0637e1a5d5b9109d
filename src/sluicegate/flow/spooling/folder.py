"""The folder of a spool: its settings, the state that both ends share, and its files while it is
open.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ConfigError, PermanentError
from ..._core.opening import Openable
from ..._core.spooling import SpoolStats
from .owner import Lock, turn
from .running import RunningSpool
from .serving import OwnerSocket
from .store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    from ..._core.clock import Clock
    from .encoding import Codec
    from .segment import Encoded


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked settings of a folder."""

    path: Path
    _: KW_ONLY
    max_bytes: int | None
    max_items: int | None
    max_age: float | None
    segment_bytes: int
    seal_every: float
    is_durable: bool
    codec: Codec


class SpoolFolder(Openable):
    """The folder of a spool, open for its ends."""

    _run_time = ("running",)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.path.name or str(settings.path)
        """The name of the folder: the topic of the source."""
        self.clock: Clock = LOOP_CLOCK
        self.running: RunningSpool | None = None
        self._writes = self._sends = False
        self._is_held_back: Callable[[], bool] | None = None
        self._stats: SpoolStats | None = None

    def take(self, *, writes: bool = False, sends: bool = False) -> None:
        """Add an end. Raises `ConfigError` if the folder is open without it."""
        if self.is_open and (writes > self._writes or sends > self._sends):
            raise ConfigError(f"{self!r} is open: call sink() and source() before one of them is")
        self._writes |= writes
        self._sends |= sends

    @property
    def is_taken(self) -> bool:
        """Whether it has an end."""
        return self._writes or self._sends

    def use_clock(self, clock: Clock) -> None:
        """Use the clock of a batcher."""
        self.clock = clock

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[RunningSpool]:
        """Keep the files open. Raises `ConfigError` if another process owns the folder."""
        async with self:
            assert self.running is not None
            yield self.running

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        roles = (("writer", self._writes), ("sender", self._sends))
        locks = [Lock(settings.path, role) for role, is_needed in roles if is_needed]
        for lock in locks:
            stack.callback(lock.release)
        store = Store(
            settings.path,
            writes=self._writes,
            sends=self._sends,
            durable=settings.is_durable,
            segment_bytes=settings.segment_bytes,
        )
        running = RunningSpool(store, self.clock, settings.seal_every)
        stack.push_async_callback(running.close)
        await running.call(_enter, locks, store)
        if store.unsettled:
            running.seal_later()
        owner = OwnerSocket(running, [lock.role for lock in locks])
        stack.callback(owner.close)
        owner.open()
        self.running = running
        stack.callback(self.stats)

    # -- bounds ------------------------------------------------------------------------------------

    def has_room(self, items: int, size: int) -> bool:
        """Whether so many more items, of so many bytes, may be stored now."""
        assert self.running is not None
        store, settings = self.running.store, self.settings
        unsettled = store.unsettled
        if not unsettled:
            return True
        if settings.max_items is not None and unsettled + items > settings.max_items:
            return False
        return settings.max_bytes is None or store.bytes + size <= settings.max_bytes

    def full(self) -> str:
        """Return why no more items are stored at present; empty if they are."""
        if self.running is None or self.has_room(1, 0):
            return ""
        store, settings = self.running.store, self.settings
        return (
            f"the spool {self.name!r} is full: {store.unsettled} items wait in {store.bytes} bytes "
            f"(max_items={settings.max_items}, max_bytes={settings.max_bytes})"
        )

    def stats(self) -> SpoolStats | None:
        """See `Spool.stats`."""
        running, settings = self.running, self.settings
        if running is not None:
            store = running.store
            items, size, oldest = store.unsettled, store.bytes, store.oldest_at
            most_items, most_bytes = settings.max_items or math.inf, settings.max_bytes or math.inf
            self._stats = SpoolStats(
                items=items,
                bytes=size,
                fill=max(items / most_items, size / most_bytes) if items else 0.0,
                oldest_age=None if oldest is None else self.age(oldest),
                parked=store.parked.total,
                sparse_files=store.sparse_files,
                refusal=running.refusal,
            )
        return self._stats

    def age(self, at: int) -> float:
        """Return the seconds since `at`, in milliseconds since the epoch."""
        return max(0.0, self.clock.wall_time() - at / 1000)

    # -- items -------------------------------------------------------------------------------------

    def encoded(
        self, items: Iterable[tuple[int, Any]]
    ) -> tuple[dict[int, Encoded], dict[int, BaseException]]:
        """Encode items at these places; return also the errors of those that cannot be encoded."""
        encoded: dict[int, Encoded] = {}
        errors: dict[int, BaseException] = {}
        now, codec = self.clock.wall_time(), self.settings.codec
        for at, item in items:
            try:
                encoded[at] = codec.encoded(item, now)
            except PermanentError as error:
                errors[at] = error
        return encoded, errors

    def hold_back(self, held: Callable[[], bool]) -> None:
        """Send nothing while `held()`: earlier items are being written from memory."""
        self._is_held_back = held

    @property
    def holds_back(self) -> bool:
        """Whether nothing is sent at present."""
        return self._is_held_back is not None and self._is_held_back()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_is_held_back": None}

    def __repr__(self) -> str:
        return f"Spool({str(self.settings.path)!r})"


def _enter(locks: Sequence[Lock], store: Store) -> None:
    with turn(store.folder):
        for lock in locks:
            lock.acquire()
        store.open()
