"""A spool: items on disk, between the code that makes them and the destination."""

from __future__ import annotations

import math
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ..._core import checks
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ClosedError, ConfigError, PermanentError
from ..._core.keywords import known_arguments
from ..._core.opening import Openable
from ..._core.spooling import SpoolStats
from ...batcher.limits import Limits, Tenants
from ...consumer.options import Poison
from ...retry.retry import Retry
from .encoding import Codec
from .owner import Lock, turn
from .running import RunningSpool
from .sending import Sender
from .serving import OwnerSocket
from .sinks import SpoolSink
from .source import SpoolSource
from .spilling import SpillSink, shared
from .store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from ..._core.clock import Clock
    from ..._core.sink import Sink
    from ..._core.spooling import SpoolHost
    from ...batcher.setup import Setup
    from ..pipe import Pipe
    from .store import Encoded

Durability = Literal["commit", "os"]
Wait = Literal["disk", "memory"]
Spill = Literal["always", "when_full"]
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
LARGEST_ITEM = 256 << 20
_LEAST_SEGMENT = 1 << 16
_SEGMENT = 64 << 20
_COMMIT_ITEMS = 2000
"""The most items of one commit."""


@known_arguments()
class Spool:
    """Items on disk, in front of a destination. An accepted item survives the process.

    `Batcher(sink, spool=Spool(path))` stores each item before it is sent; the outcome of `deliver`
    is then `spooled`. The items are sent by a pipe in the same process, at least once and in the
    order of their keys, and also after a restart. `sink` and `source` are the two ends for
    programs that only write or only send.

    Args:
        path: the folder. It is created; one process may write to it, and one may send from it.
        max_bytes: the most bytes on disk: a number, or text such as `"2GiB"`. Default: no limit.
            A full spool makes producers wait, or refuses items, as `overflow` of the batcher says.
        max_items: the most unsettled items. Default: no limit.
        max_age: seconds after which an item is no longer sent but parked. Default: no limit.
        segment_bytes: the size of a file, which is deleted when all its items are settled. Default:
            64 MiB, or an eighth of `max_bytes` if that is less.
        sync_delay: seconds for which the first item waits for others to share one write to the disk;
            default 5 ms. It does not wait if no other item is on its way.
        seal_every: in a process that only writes, seconds after which the first item of a file is
            handed over to the process that sends. Closing hands over what is left.
        durability: `"commit"`: an item is stored once the disk has confirmed it. `"os"`: once the
            operating system has it, so that a kernel crash or a power cut may lose the last items.
        spill: what is stored: `"always"`: every item. `"when_full"`: items are written from memory,
            and stored only while memory is full, or the destination does not accept writes or has a
            batch for half of a `flush_timeout`, and then until the sender has caught up. Items in
            memory are lost with the process; `add` and `deliver` return as without a spool. Items
            whose write was cut, or failed because the destination is away, are stored as well, so
            that one of unknown outcome is written again.
        wait: when `add` returns: `"disk"`: when the item is stored; `"memory"`: when it is accepted,
            and it is stored soon. `try_add` always returns then. Only with `spill="always"`.
        encode: a function from an item to bytes. Default: bytes as they are, other items as JSON.
        decode: a function of what was stored: of the bytes with `encode`, otherwise of the bytes or
            the decoded JSON. Default: that is the item.
        poison: the treatment of items that cannot be delivered, as for a pipe. Default: they are
            *parked*: moved to a file of their own in the folder.

    Raises `ConfigError` for a bad argument. Nothing is opened before the batcher, the sink or the
    source is.

    Examples:
        >>> import asyncio, tempfile
        >>> from sluicegate import Batcher
        >>> from sluicegate.flow import Spool
        >>> from sluicegate.sinks import MemorySink
        >>> async def main(folder):
        ...     sink = MemorySink()
        ...     async with Batcher(sink, spool=Spool(folder)) as batcher:
        ...         print(await batcher.deliver({"id": 1}))
        ...     print(sink.items)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     asyncio.run(main(folder))
        Outcome.SPOOLED
        [{'id': 1}]
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        max_bytes: int | str | None = None,
        max_items: int | None = None,
        max_age: float | timedelta | None = None,
        segment_bytes: int | str | None = None,
        sync_delay: float | timedelta = 0.005,
        seal_every: float | timedelta = 1.0,
        durability: Durability = "commit",
        spill: Spill = "always",
        wait: Wait = "disk",
        encode: Callable[[Any], bytes] | None = None,
        decode: Callable[[Any], Any] | None = None,
        poison: Poison | None = None,
    ) -> None:
        if not isinstance(cast("object", path), (str, PathLike)) or not str(path):
            raise checks.bad("path", path, "must be the path of a folder")
        self.path = Path(path)
        """The folder."""
        self.name = self.path.name or str(self.path)
        """The name of the folder: the topic of the source."""
        self.max_bytes = _size("max_bytes", max_bytes)
        self.max_items = checks.optional_count("max_items", max_items)
        self.max_age = checks.optional_seconds("max_age", max_age, usual=math.inf)
        self.clock: Clock = LOOP_CLOCK
        default = min(_SEGMENT, (self.max_bytes or math.inf) // 8)
        size = _size("segment_bytes", segment_bytes)
        self.segment_bytes = max(_LEAST_SEGMENT, int(default)) if size is None else size
        if self.max_bytes is not None and self.segment_bytes * 2 > self.max_bytes:
            rule = f"must be at least two segments ({2 * self.segment_bytes} bytes): space is freed by segment"
            raise checks.bad("max_bytes", max_bytes, rule)
        self._sync_delay = checks.seconds(
            "sync_delay", sync_delay, zero=True, usual=checks.LONG_DELAY
        )
        self.seal_every = checks.seconds("seal_every", seal_every, usual=checks.LONG_DELAY)
        self._durability = checks.choice("durability", durability, get_args(Durability))
        self._spill = checks.choice("spill", spill, get_args(Spill))
        if checks.choice("wait", wait, get_args(Wait)) == "memory" and spill == "when_full":
            raise checks.bad("wait", wait, 'has no effect with spill="when_full"')
        self._wait = wait
        rule = "must be a function from an item to bytes"
        encode = checks.optional_function("encode", encode, rule)
        rule = "must be a function of what was stored that returns the item"
        self.codec = Codec(encode, checks.optional_function("decode", decode, rule))
        if poison is not None and not isinstance(poison, Poison):
            raise checks.bad("poison", poison, "must be a Poison(...), as for a pipe")
        self.poison = poison
        self._writes = self._sends = False
        self._files = _Files(self)
        self._setup: Setup[Any] | None = None
        self._sender: Sender | None = None
        self._spilled: SpillSink | None = None
        self._stats: SpoolStats | None = None

    # -- the two ends ------------------------------------------------------------------------------

    def sink(self) -> SpoolSink:
        """Return the sink that stores items here, for a program that only writes, or that sends by a
        pipe of its own.
        """
        self._writes = self._checked_end(has=self._writes)
        return SpoolSink(self)

    def source(self, *, ends: bool = False) -> SpoolSource:
        """Return the source of the items here, for a pipe or a consumer. With `ends`, it ends when
        everything was delivered; otherwise it waits for more.
        """
        self._sends = self._checked_end(has=self._sends)
        return SpoolSource(self, ends=checks.flag("ends", ends))

    def _checked_end(self, *, has: bool) -> bool:
        if self._files.is_open and not has:
            raise ConfigError(f"{self!r} is open: call sink() and source() before one of them is")
        return True

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[RunningSpool]:
        """Keep the files open. Raises `ConfigError` if another process owns the folder."""
        async with self._files:
            assert self._files.running is not None
            yield self._files.running

    def locks(self) -> Iterator[Lock]:
        """Yield the locks on the folder, not yet taken."""
        for role, is_needed in (("writer", self._writes), ("sender", self._sends)):
            if is_needed:
                yield Lock(self.path, role)

    def store(self) -> Store:
        """Return the files, not yet opened."""
        return Store(
            self.path,
            writes=self._writes,
            sends=self._sends,
            durable=self._durability == "commit",
            segment_bytes=self.segment_bytes,
        )

    # -- bounds ------------------------------------------------------------------------------------

    def has_room(self, items: int, size: int) -> bool:
        """Whether so many more items, of so many bytes, may be stored now."""
        assert self._files.running is not None
        store = self._files.running.store
        unsettled = store.unsettled
        if not unsettled:
            return True
        if self.max_items is not None and unsettled + items > self.max_items:
            return False
        return self.max_bytes is None or store.bytes + size <= self.max_bytes

    def full(self) -> str:
        """Return why no more items are accepted at present; empty if they are, or if there may be
        room for them in memory.
        """
        if self._spilled is not None or self._files.running is None or self.has_room(1, 0):
            return ""
        store = self._files.running.store
        return (
            f"the spool {self.name!r} is full: {store.unsettled} items wait in {store.bytes} bytes "
            f"(max_items={self.max_items}, max_bytes={self.max_bytes})"
        )

    def stats(self) -> SpoolStats | None:
        """Return a snapshot, in any thread: while it is closed, that of its end; `None` if it was
        never open. A process that only writes or only sends sees only its own files.
        """
        running = self._files.running
        if running is not None:
            store = running.store
            items, size, oldest = store.unsettled, store.bytes, store.oldest_at
            self._stats = SpoolStats(
                items=items,
                bytes=size,
                fill=max(items / (self.max_items or math.inf), size / (self.max_bytes or math.inf))
                if items
                else 0.0,
                oldest_age=None if oldest is None else self.age(oldest),
                parked=store.parked.total,
                sparse_files=store.sparse_files,
                refusal=running.refusal,
            )
        return self._stats

    def age(self, at: int) -> float:
        """Return the seconds since `at`, in milliseconds since the epoch."""
        return max(0.0, self.clock.wall_time() - at / 1000)

    def encoded(
        self, items: Iterable[tuple[int, Any]]
    ) -> tuple[dict[int, Encoded], dict[int, BaseException]]:
        """Encode items at these places; return also the errors of those that cannot be encoded."""
        encoded: dict[int, Encoded] = {}
        errors: dict[int, BaseException] = {}
        now = self.clock.wall_time()
        for at, item in items:
            try:
                encoded[at] = self.codec.encoded(item, now)
            except PermanentError as error:
                errors[at] = error
        return encoded, errors

    # -- with a batcher ----------------------------------------------------------------------------

    @property
    def adds_stored(self) -> bool:
        """Whether `add` returns only when the item is stored."""
        return self._wait == "disk" and self._spill == "always"

    @property
    def sender(self) -> Pipe:
        """The pipe that sends what a batcher stores here: its `stats()`, `explain()` and actions.
        After the batcher was closed, those of its end. Raises `ClosedError` before it was open.
        """
        if self._sender is None:
            raise ClosedError(f"{self!r} sends nothing; open its Batcher(sink, spool=...)")
        return self._sender.pipe

    def in_front_of(self, setup: Setup[Any]) -> Setup[Any]:
        """Return the setup of the batcher that writes here; `setup` is that of the sender."""
        if self._setup is not None or self._writes or self._sends:
            raise ConfigError(f"{self!r} has another user; make a separate Spool for each")
        if setup.overflow == "drop_oldest":
            rule = "cannot be 'drop_oldest' with a spool, whose items are stored in order"
            raise checks.bad("overflow", setup.overflow, rule)
        if setup.last_resort is not None:
            rule = "has no use with a spool, which keeps what is not sent"
            raise checks.bad("last_resort", setup.last_resort, rule)
        if setup.on_key_failure != "skip":
            rule = "has no effect with a spool; use Spool(poison=...)"
            raise checks.bad("on_key_failure", setup.on_key_failure, rule)
        if setup.tenants.has_caps:
            rule = "has caps, which a spool cannot apply; use weights"
            raise checks.bad("tenants", setup.tenants, rule)
        self._setup, self.clock = setup, setup.clock
        self._writes = self._sends = True
        limits = setup.limits
        if self._spill == "when_full":
            return self._spilling(setup)
        return replace(
            setup,
            sink=self._kept(),
            limits=Limits(
                max_items=_COMMIT_ITEMS,
                max_bytes=limits.max_bytes if setup.oversize == "reject" else None,
                max_delay=self._sync_delay,
                max_pending_items=max(2 * _COMMIT_ITEMS, limits.ledger_items),
                max_pending_bytes=limits.max_pending_bytes,
                flush_timeout=limits.flush_timeout,
            ),
            oversize="reject" if setup.oversize == "reject" else "alone",
            key=None,
            tenant=None,
            tenants=Tenants(),
            open="eager",
            open_timeout=None,
            adaptive=None,
            oversize_sink=None,
            parked_sink=None,
            spool=self,
        )

    def _spilling(self, setup: Setup[Any]) -> Setup[Any]:
        if setup.adaptive is not None:
            rule = 'cannot be used with a spool and spill="when_full"'
            raise checks.bad("adaptive", setup.adaptive, rule)
        self._setup = setup = replace(setup, sink=shared(setup.sink))
        limits = setup.limits
        least = (limits.workers + 2) * limits.max_items
        self._spilled = SpillSink(setup, self._kept(), self)
        return replace(
            setup,
            sink=self._spilled,
            limits=replace(limits, max_pending_items=max(limits.ledger_items, least)),
            spare_workers=1,
            open="eager",
            open_timeout=None if setup.open == "lazy" else setup.open_timeout,
            spool=self,
        )

    def _kept(self) -> Sink[Any]:
        """Return the sink that stores items, and waits while the disk refuses them."""
        return Retry(attempts=1000)(_Front(self))

    @property
    def holds_back(self) -> bool:
        """Whether earlier items are being written from memory."""
        return self._spilled is not None and self._spilled.writes_now

    def start(self, host: SpoolHost) -> None:
        """Begin to send; called by the batcher."""
        assert self._sender is not None
        if self._spilled is not None:
            self._spilled.start(host, self._sender)
        self._sender.start(host.break_down)

    async def finish(self, until: float) -> None:
        """Send what is left, until then; called by the batcher."""
        if self._sender is not None:
            await self._sender.finish(until)

    def make_sender(self, running: RunningSpool) -> None:
        """Make the sender of the open files."""
        assert self._setup is not None
        self._sender = Sender(self, running, self._setup)

    def __getstate__(self) -> dict[str, Any]:
        gone = dict.fromkeys(("_files", "_setup", "_sender", "_spilled"))
        return {**self.__dict__, **gone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files = _Files(self)

    def __repr__(self) -> str:
        return f"Spool({str(self.path)!r})"


class _Files(Openable):
    """The files of a spool, open for all its ends."""

    _run_time = ("running",)

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self.running: RunningSpool | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        spool = self._spool
        locks = [*spool.locks()]
        for lock in locks:
            stack.callback(lock.release)
        running = RunningSpool(spool.store(), spool.clock, spool.seal_every)
        stack.push_async_callback(running.close)
        await running.call(_enter, locks, running.store)
        if running.store.unsettled:
            running.seal_later()
        owner = OwnerSocket(running, [lock.role for lock in locks])
        stack.callback(owner.close)
        owner.open()
        self.running = running
        stack.callback(self._spool.stats)


def _enter(locks: Sequence[Lock], store: Store) -> None:
    with turn(store.folder):
        for lock in locks:
            lock.acquire()
        store.open()


class _Front(SpoolSink):
    """The destination of a batcher with a spool: open, it has a sender."""

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)
        assert self._running is not None
        self.spool.make_sender(self._running)


def spool(path: str | PathLike[str], **options: Any) -> Spool:
    """Make a `Spool`, whose `sink()` and `source()` are the two ends of a spool on disk.

    Takes the arguments of `Spool`. One process may write and another one may send.
    """
    return Spool(path, **options)


def _size(name: str, given: int | str | None) -> int | None:
    """Check a number of bytes, which may have a unit."""
    if not isinstance(given, str):
        return checks.optional_count(name, given, least=_LEAST_SEGMENT)
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]i?B|)\s*", given)
    if found is None:
        raise checks.bad(name, given, 'must be a number of bytes, or text such as "512MiB"')
    return checks.count(name, int(float(found[1]) * _UNITS[found[2]]), least=_LEAST_SEGMENT)
