"""A batcher with a spool: the sink that stores items, and the sender behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ..._core import checks
from ..._core.errors import ClosedError
from ...batcher.limits import Limits, Tenants
from ...retry.retry import Retry
from .sending import Sender
from .sinks import SpoolSink
from .spilling import SpillSink, shared

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ..._core.sink import Sink
    from ..._core.spooling import SpoolHost, SpoolStats
    from ...batcher.setup import Setup
    from ...consumer.options import Poison
    from .folder import SpoolFolder
    from .running import RunningSpool

Spill = Literal["always", "when_full"]
Wait = Literal["disk", "memory"]
_COMMIT_ITEMS = 2000
"""Maximum number of items of one commit."""


class Front:
    """The spool of one batcher, as that sees it: see `SpoolFront`."""

    def __init__(
        self,
        folder: SpoolFolder,
        setup: Setup[Any],
        *,
        spill: Spill,
        wait: Wait,
        sync_delay: float,
        poison: Poison | None,
    ) -> None:
        _check(setup, spill)
        folder.use_clock(setup.clock)
        folder.take(writes=True, sends=True)
        self._folder = folder
        self._poison = poison
        self._sender: Sender | None = None
        self._spilled: SpillSink | None = None
        self.adds_stored = wait == "disk" and spill == "always"
        """Whether `add` returns only when the item is stored."""
        kept = Retry(attempts=1000)(_FrontSink(folder, self))
        if spill == "when_full":
            setup = replace(setup, sink=shared(setup.sink))
            self._spilled = SpillSink(setup, kept, folder)
        self._setup = setup
        self.setup: Setup[Any] = (
            self._storing(kept, sync_delay)
            if self._spilled is None
            else self._spilling(self._spilled)
        )
        """The arguments of the batcher that writes to the spool."""

    def _storing(self, kept: Sink[Any], sync_delay: float) -> Setup[Any]:
        setup, limits = self._setup, self._setup.limits
        return replace(
            setup,
            sink=kept,
            limits=Limits(
                max_items=_COMMIT_ITEMS,
                max_bytes=limits.max_bytes if setup.oversize == "reject" else None,
                max_delay=sync_delay,
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

    def _spilling(self, spilled: SpillSink) -> Setup[Any]:
        setup, limits = self._setup, self._setup.limits
        least = (limits.workers + 2) * limits.max_items
        return replace(
            setup,
            sink=spilled,
            limits=replace(limits, max_pending_items=max(limits.ledger_items, least)),
            spare_workers=1,
            open="eager",
            open_timeout=None if setup.open == "lazy" else setup.open_timeout,
            spool=self,
        )

    @property
    def sender(self) -> Sender:
        """The sender of the open spool, or of the last one. Raises `ClosedError` before."""
        if self._sender is None:
            raise ClosedError(f"{self._folder!r} sends nothing; open its Batcher(sink, spool=...)")
        return self._sender

    def full(self) -> str:
        """Return why no more items are accepted at present; empty if they are, or if there may be
        room for them in memory.
        """
        return "" if self._spilled is not None else self._folder.full()

    def stats(self) -> SpoolStats | None:
        """See `Spool.stats`."""
        return self._folder.stats()

    def make_sender(self, running: RunningSpool) -> None:
        """Make the sender of the open files."""
        self._sender = Sender(self._folder, running, self._setup, self._poison)

    def start(self, host: SpoolHost) -> None:
        """See `SpoolFront`."""
        if self._spilled is not None:
            self._spilled.start(host, self.sender)
        self.sender.start(host.break_down)

    async def finish(self, until: float) -> None:
        """See `SpoolFront`."""
        if self._sender is not None:
            await self._sender.finish(until)


class _FrontSink(SpoolSink):
    """The destination of a batcher with a spool: open, it has a sender."""

    def __init__(self, folder: SpoolFolder, front: Front) -> None:
        super().__init__(folder)
        self._front = front

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)
        assert self._running is not None
        self._front.make_sender(self._running)


def _check(setup: Setup[Any], spill: Spill) -> None:
    """Refuse arguments of a batcher that a spool cannot keep."""
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
    if spill == "when_full" and setup.adaptive is not None:
        rule = 'cannot be used with a spool and spill="when_full"'
        raise checks.bad("adaptive", setup.adaptive, rule)
