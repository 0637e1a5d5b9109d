"""The sinks at both ends of a spool: one stores items, one keeps the batches that it writes."""

from __future__ import annotations

import hashlib
import math
from array import array
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core.batch import Batch, Lineage, RowBatch
from ..._core.classify import classified
from ..._core.decorator import WrappingSink
from ..._core.errors import ErrorClass, RefusedError, StoppedError
from ..._core.opening import Openable
from ..._core.order.left_out import stopped_behind
from ..._core.outcome import Outcome
from ..._core.send import send
from ..._core.sink import Capabilities, WriteResult, classifier_of
from .segment import Extent
from .store import LOOKS_EVERY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AsyncExitStack

    from ..._core.sink import Sink
    from ...batcher.setup import Setup
    from .encoding import Codec
    from .folder import SpoolFolder
    from .running import RunningSpool
    from .segment import Encoded


_OUTAGES = {ErrorClass.UNAVAILABLE, ErrorClass.REFUSED, ErrorClass.THROTTLE}


class SpoolSink(Openable):
    """Stores items in a spool, each with the outcome `spooled`. Made by `Spool.sink`.

    A write suspends until the items are on disk, and while the spool is full. An item that cannot
    be encoded is rejected with `PermanentError`; a disk that is full or read-only is a
    `RefusedError`. A cancelled write may have stored its items.
    """

    capabilities = Capabilities(key_prefix_safe=True, max_concurrency=1)
    _run_time = ("_running",)

    def __init__(self, folder: SpoolFolder) -> None:
        self._folder = folder
        self._running: RunningSpool | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        self._running = await stack.enter_async_context(self._folder.opened())

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Store the items of a batch."""
        assert self._running is not None
        encoded, errors = self._folder.encoded(enumerate(batch))
        errors |= stopped_behind(batch.keys, errors)
        for piece in self._pieces({at: encoded[at] for at in encoded if at not in errors}):
            values = [*piece.values()]
            size = sum(len(each.value) for each in values)
            while not self._folder.has_room(len(values), size):
                if await batch.back_off(self._looks_at(), self._running.freed):
                    raise StoppedError(f"{self._folder!r} is full; the items were not stored")
                await self._running.call(self._running.store.look_at_others)
            await self._running.put(values)
            batch.settle(piece, Outcome.SPOOLED)
        return WriteResult.failed(batch, errors) if errors else None

    def _looks_at(self) -> float:
        """Return when to look again whether another process has freed room."""
        assert self._running is not None
        return math.inf if self._running.store.sends else self._folder.clock.now() + LOOKS_EVERY

    def _pieces(self, encoded: dict[int, Encoded]) -> Iterator[dict[int, Encoded]]:
        """Yield the items in pieces that fit into a segment, and into `max_items`."""
        piece: dict[int, Encoded] = {}
        room = self._folder.settings.segment_bytes
        for at, each in encoded.items():
            if piece and (len(each.value) > room or len(piece) == self._folder.settings.max_items):
                yield piece
                piece, room = {}, self._folder.settings.segment_bytes
            piece[at] = each
            room -= len(each.value)
        if piece:
            yield piece

    def __repr__(self) -> str:
        return f"{self._folder!r}.sink()"


class Spooled(NamedTuple):
    """An item on its way from the spool to its destination."""

    offset: int
    item: Any


class ExtentSink(WrappingSink[Any]):
    """The destination of a spool: stores which items a batch has before it is written, so that the
    same batch can be written again after a crash.
    """

    def __init__(self, inner: Sink[Any], running: RunningSpool) -> None:
        super().__init__(inner)
        self._running = running
        self._doubtful: dict[str, Extent] = {}
        """Batches that are being written, and those whose writes were cut."""

    async def write(self, batch: Batch[Spooled]) -> WriteResult | None:
        """Store the extent, write the items, and settle those that are safe."""
        extent = self._extent(batch)
        for earlier in [*self._doubtful.values()]:
            if earlier.batch != extent.batch and not set(extent.offsets).isdisjoint(
                earlier.offsets
            ):
                await self._running.settle((), earlier)  # it cannot be repeated as a whole any more
                del self._doubtful[earlier.batch]
        with suppress(RefusedError):  # the disk is full, and sending makes room
            await self._running.keep(extent)
        self._doubtful[extent.batch] = extent
        plain: RowBatch[Any] = RowBatch(
            [each.item for each in batch],
            lineage=replace(batch.lineage, id=extent.batch),
            delivery=batch.delivery,
            origins=batch.roots(),
            attempt=batch.attempt,
            keys=batch.keys,
            sizes=batch.sizes,
        )
        errors = await send(self.inner, plain)
        await settle(self._running, extent, errors)
        self._doubtful.pop(extent.batch, None)
        return WriteResult.failed(batch, errors) if errors else None

    def _extent(self, batch: Batch[Spooled]) -> Extent:
        offsets = array("q", [each.offset for each in batch])
        digest = hashlib.blake2b(offsets.tobytes(), digest_size=16).hexdigest()
        return Extent(f"{self._running.store.id}-{digest}", offsets)


async def settle(running: RunningSpool, extent: Extent, errors: dict[int, BaseException]) -> None:
    """End a batch, and settle its items without an error."""
    safe = [offset for at, offset in enumerate(extent.offsets) if at not in errors]
    await running.settle(sorted(safe), extent)


async def write_again(running: RunningSpool, setup: Setup[Any], codec: Codec) -> None:
    """Write the batches whose writes were interrupted again: the same items, under the same id.

    Items that fail are left to the sender, and so is a batch of which an item is gone. Raises the
    error of a destination that does not accept writes: the next call repeats the batch.
    """
    for extent in running.store.extents():
        items = await running.call(running.store.find, extent.offsets)
        tenant, keys = None, None
        try:
            values = [codec.decoded(item) for item in items]
            if setup.tenant is not None and values:
                tenant = setup.tenant(values[0])
            if setup.key is not None:
                keys = [*map(setup.key, values)]
        except Exception:
            values = []  # the sender parks an item for which one of the functions raises
        is_whole = len(values) == len(extent.offsets)
        if not is_whole or not await running.call(running.store.any_unsettled, extent.offsets):
            await running.settle((), extent)
            continue
        batch: RowBatch[Any] = RowBatch(
            values,
            lineage=Lineage(id=extent.batch, name=setup.name, tenant=tenant),
            keys=keys,
        )
        batch.delivery.doubt(range(len(values)))
        errors = await send(setup.sink, batch)
        for error in errors.values():
            if classified(error, classifier_of(setup.sink)) in _OUTAGES:
                raise error
        await settle(running, extent, errors)
