"""A spool as a source: its unsettled items, in the order in which they were stored."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..._core.clock import wait_until
from ..._core.errors import ClosedError, PermanentError
from ..._core.opening import only_user
from ..._core.source import (
    Fetched,
    Position,
    SourceCapabilities,
    TopicPartition,
    UndecodableRecord,
    Unread,
)
from .store import LOOKS_EVERY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from ..._core.source import ClaimHost, SourceClaim, SourceRecord
    from .folder import SpoolFolder
    from .running import RunningSpool
    from .segment import Item


@dataclass(frozen=True, slots=True)
class SpoolRecord:
    """An item of a spool. Its `key` is `None`, and its `id` is the same after every restart."""

    topic: str
    offset: int
    value: Any
    """The decoded item."""
    timestamp: int
    """When it was stored: milliseconds since the epoch."""
    size: int
    """The size of the encoded item in bytes."""
    spool: str
    """The identity of the spool."""
    partition: int = 0
    key: None = None

    @property
    def id(self) -> str:
        """The durable id of the item."""
        return f"{self.spool}/{self.offset}"

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """One header, `id`: the durable id."""
        return (("id", self.id.encode()),)


class SpoolSource:
    """Delivers the items of a spool, each until it is settled. Made by `Spool.source`.

    One claim, for partition 0, lasts as long as the source is open. An item that cannot be decoded,
    or is older than `max_age`, is poison. With `ends`, the source ends when everything was
    delivered.
    """

    capabilities = SourceCapabilities(batches=True, lag="counts", settles_each=True)

    def __init__(self, folder: SpoolFolder, *, ends: bool = False) -> None:
        self._folder = folder
        self._ends = ends
        self._running: RunningSpool | None = None
        self._claim: SourceClaim | None = None
        self._at = 0
        self._told = 0
        self._untold: list[int] = []

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Open the spool and claim its partition."""
        with only_user(self):
            async with self._folder.opened() as running:
                self._running = running
                self._host = host
                self._at = self._told = running.store.start
                self._untold = []
                partition = TopicPartition(self._folder.name, 0)
                (self._claim,) = host.assigned({partition: Position(self._at)})
                try:
                    yield
                finally:
                    host.ended([self._claim])
                    self._running = self._claim = None

    def end(self) -> None:
        """End when everything was delivered."""
        self._ends = True
        if self._running is not None:
            self._running.news.fire()

    @property
    def is_read(self) -> bool:
        """Whether every stored item was delivered, by this process or an earlier one."""
        running = self._running
        return running is not None and self._at >= running.store.end

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Deliver the next items; suspend until there are some. Raises errors of the files."""
        while True:
            running = self._open()
            if claims and self._claim is claims[0] and not self._folder.holds_back:
                items, self._at = await running.read(self._at, most, self._host.room_bytes)
                running.freed.fire()
                if items or self._at > self._told:
                    self._told = self._at
                    return [Fetched(claims[0], [*map(self._record, items)], self._at)]
                store = running.store
                if self._ends and self._at >= store.end:
                    if store.writes or not await running.call(store.adopt):
                        return None
                    continue
            clock = self._folder.clock
            if running.store.writes:
                await wait_until(clock, math.inf, running.news)
            else:
                await wait_until(clock, clock.now() + LOOKS_EVERY, running.news)
                await running.call(running.store.adopt)

    def _record(self, item: Item) -> SourceRecord:
        spool, size = self._folder, len(item.value)
        try:
            value = self.decoded(item)
        except Exception as error:
            return UndecodableRecord(
                spool.name, 0, item.offset, None, item.value, timestamp=item.at, error=error
            )
        return SpoolRecord(spool.name, item.offset, value, item.at, size, self._open().store.id)

    def decoded(self, item: Item) -> Any:
        """Decode an item. Raises the reason why it is not delivered."""
        most, settings = self._folder.settings.max_age, self._folder.settings
        if most is not None and self._folder.age(item.at) > most:
            raise PermanentError(f"older than max_age={most:g} s")
        return settings.codec.decoded(item)

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store which items are settled. Raises errors of the files; the next call repeats them."""
        claim = self._claim
        if claim is None or claim not in positions:
            return ()
        self._untold += claim.take_settled().offsets
        told = sorted(self._untold)
        await self._open().settle(told)
        self._untold = []
        return [claim]

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """Return the offset after the last item."""
        end = self._open().store.end
        return dict.fromkeys((claim for claim in claims if claim is self._claim), end)

    async def lag(self, positions: Mapping[SourceClaim, int]) -> Mapping[SourceClaim, Unread]:
        """Return the number of unsettled items, and the age of the oldest."""
        running = self._open()
        oldest = running.store.oldest_at
        seconds = 0.0 if oldest is None else self._folder.age(oldest)
        unread = Unread(running.store.unsettled, seconds)
        return {claim: unread for claim in positions if claim is self._claim}

    def _open(self) -> RunningSpool:
        if self._running is None:
            raise ClosedError(f"{self!r} is not open")
        return self._running

    def __repr__(self) -> str:
        return f"{self._folder!r}.source()"
