"""The batcher's public face: opening, closing, adding items, state.

The fast path of adding is for the batcher's own loop: each call compares the calling thread with
that of the loop (see `RunsInThread`); the slow path refuses all other threads.
"""
# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterable
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .._core import checks
from .._core.batch import Reason
from .._core.errors import ConfigError, DeliverTimeout
from .._core.keywords import takes
from .._core.order.keys import identity
from .._core.runtime import process_fork
from .._core.runtime.run import batcher_ended, note_opened
from . import log
from .dispatch import Dispatcher
from .drain import Drain
from .feed import Feed
from .gathering.tenant_queue import TenantKey
from .gathering.tenants import TenantGatherer
from .gathering.window import NOTHING, NeedsSlowPath
from .intake import Intake, SpoolIntake
from .item_mistakes import several
from .opener import Opener
from .receipt import Receipt
from .report import MOST_TENANTS, FlushReport, Stats
from .setup import DEFAULT_NAME, BatcherOptions, checked_setup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable
    from datetime import timedelta
    from types import TracebackType
    from typing import Self, Unpack

    from .._core.clock import Signal
    from .._core.outcome import Outcome, Tally
    from .._core.sink import SinkLike
    from .books import Fence
    from .limits import Limits
    from .receipt import ResolvesAll
    from .report import ShutdownReport
    from .setup import Setup


T = TypeVar("T")
_entering = process_fork.ProcessLock()
"""Held while a batcher is claimed for a loop: loops of other threads may enter it too."""


class Batcher(Generic[T]):
    """Gathers items and writes them to a sink in batches; every accepted item has exactly one
    outcome.

    Use it as `async with Batcher(sink) as batcher:`. Leaving the block drains it, stores the report
    in `report`, and raises `DrainTimeout` if items were left. It does not raise if `shutdown` was
    called in the block, since its report shows them, or if an exception is already being raised,
    which gets a note instead. It may be constructed anywhere: it needs a running loop only when
    entered, and may be entered again after it was closed.

    Args:
        sink: a sink, or a function of a batch (async, or plain, which runs in a thread).
        limits: sizes, times and workers; see `Limits`.
        name: appears in logs, metrics and reports. A pipe gives its own name to a batcher without
            one.
        overflow: the policy for a full ledger. `"block"` (default) makes `add` wait, `"reject"`
            makes it raise `LedgerFull`, `"drop_newest"` accepts and drops the new items, and
            `"drop_oldest"` makes room by dropping the oldest items that no worker has taken (or the
            new ones if there are none). Dropped items have the outcome `dropped`, including in
            their receipts.
        oversize: the policy for an item larger than `max_bytes`. `"alone"` (default) writes it
            alone in a batch, `"reject"` makes `add` raise `ItemTooLarge`, and `"dead_letter"` sends
            it to the dead letters without a write (the stack must have a `DeadLetter`).
        size_of: measures an item in bytes; needed with `max_bytes` or `max_pending_bytes` unless
            items are bytes-like.
        key: a function from an item to its key. Items of one key are then written in the order in
            which they were accepted, with any number of workers: a key is in at most one batch at a
            time, and waits while one of its items backs off. A sink that is not `key_prefix_safe`
            gets at most one item of a key per batch. Keys of different types differ (`1`, `True`
            and `"1"` are three keys); an item with a key without a stable hash is refused with
            `TypeError`. The function must not use this batcher.
        on_key_failure: the policy for a key's later items after one was dead-lettered or rejected.
            `"skip"` (default): they are written. `"pause"`: they stay pending until `resume(key)`.
            `"park"`: they stay pending until `unpark(key)`, up to a bound; beyond it the oldest go
            to the dead letters of the stack, in order. `"fail"`: pending items are rejected and new
            ones refused with `KeyFailedError`, until `resume(key)`. Held items use room in the
            ledger, no flush waits for them, and a shutdown returns them unsent. With `tenant`, a
            key is a key within its tenant.
        max_parked_items: maximum number of held items per key with `"park"`; default 1,000.
        tenant: a function from an item to its tenant. Each batch then belongs to one tenant, and is
            complete by that tenant's own size and time. Tenants with items to send share the
            workers fairly; a tenant that backs off or is throttled does not slow the others. With
            one worker and no `key`, a tenant's items are in order. Tenants are compared like keys.
        tenants: weights and caps of tenants; see `Tenants`.
        on_failure: the handling of items that end rejected or unknown. `"log"` (default): they are
            counted and logged; `"crash"`: the batcher also stops permanently; or a function of
            (items, error), called in addition.
        shutdown_deadline: total seconds for the shutdown when the block is left; default 25.
        last_resort: a sink (or function) that receives items known not to be applied shortly before
            a shutdown's deadline; it has a fifth of the deadline. Items that it takes end
            `dead_lettered`, the others `unsent`. Opened and closed with the batcher.
        open: `"eager"` (default): entering opens the sink, and raises if that fails. `"lazy"`:
            entering returns immediately, items are accepted, and the sink is opened in the
            background; an unavailable destination is handled like any outage.
        open_timeout: seconds. With `"eager"`, opening an unavailable destination is retried for
            this time; by default there is one attempt. With `"lazy"`, the batcher is broken if its
            sink is not open by then; by default there is no limit.
        adaptive: adapts concurrency and batch size below the limits; see `Adaptive`. Off by
            default. With `workers=1`, only the size adapts, and order stays total.
        observers: observers of this batcher.
        clock: the time source; the running loop by default.
        spool: a `Spool(path)`, which stores items on disk before they are sent. `add` then returns
            when the item is stored, and `deliver` returns `spooled`. The tally counts what is
            stored; sending has its own (`spool.sender`). A shutdown sends until its deadline, and
            leaves the rest for the next start.

    Raises:
        ConfigError: a bad argument, naming it, its value and the rule. Nothing has been started.
    """

    @takes(BatcherOptions, checked_setup)
    def __init__(self, sink: SinkLike[T], **options: Unpack[BatcherOptions[T]]) -> None:
        self._use(checked_setup(sink, **options))

    def _use(self, setup: Setup[T]) -> None:
        self.setup = setup
        """The checked arguments; read-only."""
        self._renew()

    def _renew(self) -> None:
        """Start empty."""
        self._dispatcher = self._new_dispatcher()
        self._intake: Intake[T] = (
            Intake(self._dispatcher) if self.setup.spool is None else SpoolIntake(self._dispatcher)
        )
        self._lifecycle = self._dispatcher.lifecycle
        self._window = self._dispatcher.window
        self._opener = Opener(self._dispatcher)
        self._drain: Drain[T] | None = None
        self._feed: Feed[T] | None = None
        self.report: ShutdownReport[T] | None = None
        """The report of the last shutdown; `None` before."""

    def _new_dispatcher(self) -> Dispatcher[T]:
        return Dispatcher(self.setup)

    # -- opening and closing -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        with _entering:
            self._lifecycle.check_here()
            state = self._lifecycle.state
            if state not in {"new", "closed"}:
                message = f"batcher {self.name!r} is {state}; enter it once, and share the object"
                raise ConfigError(message)
            if state == "closed":
                self._renew()
            process_fork.watch(self)
            self._lifecycle.open_on(asyncio.get_running_loop())
        try:
            await self._opener.open()
        except BaseException:
            self._renew()
            raise
        self._window.open_on(asyncio.get_running_loop())
        self._lifecycle.enter("open")
        note_opened(self)
        self._opener.entered()
        if self.setup.spool is not None:
            self.setup.spool.start(self._dispatcher)
        observers, shown = self._dispatcher.observers, self._lifecycle.shown_state
        observers.tell(lambda observer: observer.on_open(self.name, self.stats))
        observers.tell(lambda observer: observer.on_state(self.name, shown))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        was_told = self.report is not None  # by a shutdown inside the block
        report = await self.shutdown()
        if error is None and not was_told:
            report.raise_if_incomplete()
        elif not report.complete and error is not None and not was_told:
            error.add_note(str(report))

    async def shutdown(
        self, deadline: float | timedelta | None = None, *, admit_waiting: bool = False
    ) -> ShutdownReport[T]:
        """Stop accepting, write all pending items, close the sink; return the report of all
        outcomes within `deadline` seconds.

        `deadline` defaults to the batcher's `shutdown_deadline`. Concurrent calls share one
        shutdown and its report, and the earliest deadline wins. Producers that wait for room get
        `ClosedError`; with `admit_waiting` (of the first call) they are admitted as room becomes
        free: the open batch is sealed as `shutdown_request` and their items as `shutdown`. It does
        not raise at the deadline; see `report.complete`. Suspends until the shutdown has ended. A
        cancellation sets the deadline to the present; it is raised after the shutdown has ended.
        """
        default = self.setup.shutdown_deadline
        seconds = checks.seconds(
            "deadline",
            default if deadline is None else deadline,
            zero=True,
            usual=checks.LONG_TIMEOUT,
        )
        self._lifecycle.check_here()
        self._lifecycle.check_entered()
        if self.report is not None:
            return self.report
        if self._drain is None:
            self._enter("closing")
            self._drain = Drain(
                self._dispatcher, self._opener, seconds, admit_waiting=admit_waiting
            )
        else:
            self._drain.hasten(seconds)
        return await self._drain.wait(self._keep)

    def _keep(self, report: ShutdownReport[T]) -> None:
        if self.report is None:
            self.report = report
            self._enter("closed")
            batcher_ended(self, report, is_fed=self._feed is not None)

    def _enter(self, state: str) -> None:
        self._lifecycle.enter(state)
        self._dispatcher.observers.tell(lambda observer: observer.on_state(self.name, state))

    async def aclose(self) -> None:
        """Shut down within the default deadline; `report` keeps the result."""
        await self.shutdown()

    def after_fork(self) -> None:
        """Start empty in a forked child: the pending items belong to the parent."""
        if self._lifecycle.state == "new":
            return
        process_fork.leave_to_parent(self._dispatcher, self._drain, self._opener)
        self._renew()
        self._lifecycle.enter("forked")

    # -- items -------------------------------------------------------------------------------------

    async def add(self, item: T, *, timeout: float | timedelta | None = None) -> None:
        """Accept `item` in memory or, with a spool, on disk; wait while the ledger is full.

        `timeout` in seconds (default: none) bounds the wait. Raises `AddTimeout` when it expires,
        `ClosedError` once the batcher is closed, `ItemTooLarge` for an item that can never fit,
        `KeyFailedError` for a key that failed (`on_key_failure="fail"`), and what `key=`, `tenant=`
        or `size_of=` raises for it; in each case, and on cancellation, the item was not accepted.
        Usually returns without suspending; occasionally it lets other tasks run
        first. With a spool it suspends until the item is stored, and can also raise the errors of
        `deliver`; a cancelled call may have stored the item.
        """
        seconds = None if timeout is None else _seconds(timeout)
        known = NOTHING
        window = self._window
        items = window.items
        if len(items) < window.limit and get_ident() == window.loop._thread_id:
            try:
                items.append(item)
                return
            except NeedsSlowPath as declined:
                known = declined.known
        await self._intake.add((item,), None, seconds, known)

    def try_add(self, item: T) -> bool:
        """Accept `item` if there is room now; never waits.

        Returns false if the ledger is full, another producer waits for room, its key has failed, it
        is too large, or the batcher is closed; the item then counts as refused. With `drop_newest`
        an item without room counts as dropped; with `drop_oldest` it replaces older ones.
        """
        known = NOTHING
        window = self._window
        items = window.items
        if len(items) < window.try_limit and get_ident() == window.loop._thread_id:
            try:
                items.append(item)
                return True
            except NeedsSlowPath as declined:
                known = declined.known
        self._lifecycle.check_here()
        return self._intake.try_add(item, known)

    async def add_many(
        self, items: Iterable[T], *, timeout: float | timedelta | None = None
    ) -> None:
        """Accept all of `items` together and in order, or none; waits and raises like `add`."""
        together = tuple(several(items))
        if together:
            await self._intake.add(together, None, _seconds(timeout))

    async def add_from(
        self, source: AsyncIterable[T] | Iterable[T], *, timeout: float | timedelta | None = None
    ) -> int:
        """Add every item of `source`; return their number. `timeout` bounds the wait of each item.
        After an exception or cancellation, the items added before stay added.
        """
        added = 0
        if isinstance(source, AsyncIterable):
            async for item in source:
                await self.add(item, timeout=timeout)
                added += 1
            return added
        for item in several(source, "add_from"):
            await self.add(item, timeout=timeout)
            added += 1
        return added

    async def submit(self, item: T, *, timeout: float | timedelta | None = None) -> Receipt:
        """Like `add`; `await` the returned receipt until the item is stored, or for `ItemFailed`."""
        seconds = None if timeout is None else _seconds(timeout)
        receipt = Receipt()
        known = NOTHING
        window = self._window
        items = window.items
        filled = len(items)
        if filled < window.limit and get_ident() == window.loop._thread_id:
            window.receipts[filled] = receipt
            try:
                items.append(item)
                return receipt
            except NeedsSlowPath as declined:
                known = declined.known
        await self._intake.add((item,), (receipt,), seconds, known)
        return receipt

    async def deliver(self, item: T, *, timeout: float | timedelta | None = None) -> Outcome:
        """Add `item`, wait until it is stored, and return `delivered`, `duplicate` or `spooled`.

        Raises `ItemFailed` for every other outcome: a dead-lettered item is safe, but not stored.
        `timeout` in seconds (default: none) bounds the whole wait. It raises `AddTimeout` while the
        item waits for room: it was not accepted. Later it raises `DeliverTimeout` with the
        `receipt`: the item is accepted and still written, so do not send it again. Otherwise raises
        like `add`. After a cancellation the item may have been accepted, and is then written all
        the same; with `submit`, a cancellation means that it was not accepted.
        """
        seconds = _seconds(timeout)
        if seconds is None:
            return await (await self.submit(item))
        clock = self._lifecycle.clock
        ends = clock.now() + seconds
        receipt = await self.submit(item, timeout=seconds)
        try:
            async with clock.timeout_at(ends):
                await receipt.settled()
        except TimeoutError:
            if receipt.outcome is None:
                raise DeliverTimeout(receipt, seconds) from None
        return receipt.result()

    def feed(
        self, holds: Collection[Outcome] = (), resolve_all: ResolvesAll | None = None
    ) -> Feed[T]:
        """Make the feed for a source that may lose items, once per opening; see `Feed`.

        From now on an item that ends with an outcome of `holds` (`UNKNOWN`, `REJECTED`, `UNSENT`)
        holds its key. If all items of a batch have the same success, `resolve_all(receipts,
        outcome)` is called; unless it returns true, each receipt is resolved. Raises `ClosedError`
        unless open; `ConfigError` for bad `holds`, or again.
        """
        self._lifecycle.check_open()
        if self._feed is not None:
            raise ConfigError(f"batcher {self.name!r} already has a feed; share that one")
        self._feed = Feed(self._dispatcher, self._intake, holds, resolve_all)
        return self._feed

    async def flush(self, timeout: float | timedelta | None = None) -> FlushReport:
        """Write all items accepted before this call, no later ones, and wait for their outcomes.

        `timeout` in seconds bounds the wait; the report then has the number of remaining items. On
        a closed batcher it returns immediately, also with that number. Raises `BatcherBroken` on a
        broken one.
        """
        return await flushed(self._dispatcher, _seconds(timeout))

    # -- keys --------------------------------------------------------------------------------------

    def resume(self, key: object, *, tenant: object = ...) -> int:
        """Release a key that `on_key_failure` has paused or failed; return its number of held items.

        Held items are sent first, in order. `tenant` is required if the batcher has tenants. Raises
        `ConfigError` unless the policy is `"pause"` or `"fail"`, and for a missing or superfluous
        tenant; `TypeError` for an object that cannot be a key or a tenant. Never suspends.
        """
        return release(self._dispatcher, "resume", key, tenant, ("pause", "fail"))

    def unpark(self, key: object, *, tenant: object = ...) -> int:
        """Release a key that `on_key_failure` has parked; return its number of held items.

        Like `resume`, for the policy `"park"`. Items spilled to the dead letters precede the held
        ones: replay them first.
        """
        return release(self._dispatcher, "unpark", key, tenant, ("park",))

    # -- state -------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The batcher's name."""
        return self.setup.name

    @property
    def limits(self) -> Limits:
        """The limits. `stats()` has the values in force of an adaptive batcher."""
        return self.setup.limits

    def tally(self) -> Tally:
        """The current counts of all outcomes and of the pending items."""
        return self._dispatcher.tally()

    def stats(self) -> Stats:
        """Return a snapshot, in any state; from another thread its counts may not add up."""
        return stats_of(self._dispatcher)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Warn about pending items: nothing can drain them any more."""
        lifecycle = getattr(self, "_lifecycle", None)
        if lifecycle is not None and lifecycle.is_running and self._dispatcher.ledger.inside:
            message = (
                f"batcher {self.name!r} was dropped with items inside ({self.tally()}); use "
                "`async with`, or await shutdown()"
            )
            log.dropped(message)
            _warn(message, ResourceWarning, source=self)

    def __repr__(self) -> str:
        tally, state = self.tally(), self._lifecycle.shown_state
        return (
            f"Batcher(name={self.name!r}, state={state!r}, queue={tally.queued}, "
            f"enq={tally.enqueued}, ok={tally.flushed_ok}, fail={tally.flushed_fail}, "
            f"drop={tally.dropped + tally.unsent})"
        )


def batcher_of(setup: Setup[T]) -> Batcher[T]:
    """Make a batcher of checked arguments."""
    made = cast("Batcher[T]", object.__new__(Batcher))
    made._use(setup)
    return made


def pressed_signal(batcher: Batcher[Any]) -> Signal:
    """Return the signal that fires at each report that the destination does not accept writes."""
    return batcher._dispatcher.pressed


def name_after(batcher: Batcher[Any], name: str) -> None:
    """Name a batcher that is not open after its only user, unless it has a name of its own."""
    if batcher.name == DEFAULT_NAME:
        batcher._use(replace(batcher.setup, name=name))


def _seconds(timeout: float | timedelta | None) -> float | None:
    return checks.optional_seconds("timeout", timeout, zero=True, usual=checks.LONG_TIMEOUT)


def _fence(dispatcher: Dispatcher[Any]) -> Fence:
    """Seal the open batch; return a fence after all items accepted so far."""
    with dispatcher.step():
        now = dispatcher.clock.now()
        dispatcher.window.close()
        dispatcher.gathering.gatherer.seal(Reason.MANUAL, now)
        fence = dispatcher.fences.add(dispatcher.numbers.last)
        dispatcher.check_fences()
        dispatcher.advance(now)
    return fence


async def flushed(dispatcher: Dispatcher[Any], seconds: float | None) -> FlushReport:
    """Write all items accepted so far; suspends and raises like `Batcher.flush`."""
    lifecycle = dispatcher.lifecycle
    lifecycle.check_here()
    if lifecycle.broken is not None:
        raise lifecycle.closed_error()
    if lifecycle.state != "open":
        return FlushReport(remaining=dispatcher.ledger.inside, outcomes={})
    clock, fence = lifecycle.clock, _fence(dispatcher)
    try:
        async with clock.timeout_at(None if seconds is None else clock.now() + seconds):
            await fence.passed
    except TimeoutError:
        pass  # the report has the remaining items
    finally:
        dispatcher.fences.remove(fence)
    if lifecycle.broken is not None:
        raise lifecycle.closed_error()
    holds = dispatcher.gathering.holds
    held = 0 if holds is None else holds.until(fence.number)
    remaining = dispatcher.before(fence.number) + held
    return FlushReport(remaining=remaining, outcomes=dict(fence.outcomes))


def release(
    dispatcher: Dispatcher[Any], call: str, key: object, tenant: object, policies: tuple[str, ...]
) -> int:
    """Release a key under one of `policies`; return its number of held items. Raises `ConfigError`."""
    dispatcher.lifecycle.check_here()
    policy = dispatcher.setup.on_key_failure
    if policy not in policies:
        rule = f"{call}() needs one of {', '.join(policies)}"
        raise checks.bad("on_key_failure", policy, rule)
    known = _known(dispatcher, call, key, tenant)
    holds = dispatcher.gathering.holds
    if holds is None or dispatcher.lifecycle.state != "open":
        return 0
    with dispatcher.step():
        now = dispatcher.clock.now()
        dispatcher.window.close()
        count = holds.let_go(known, now)
        dispatcher.advance(now)
    return count


def _known(dispatcher: Dispatcher[Any], call: str, key: object, tenant: object) -> Hashable:
    """Return the identity of the key in the gatherer."""
    if dispatcher.setup.tenant is None:
        if tenant is not ...:
            rule = f"{call}() takes none, since the batcher has no tenant="
            raise checks.bad("tenant", tenant, rule)
        return identity(key)
    if tenant is ...:
        raise ConfigError(
            f"{call}({key!r}) needs tenant=, since the batcher has tenants: a key is a key "
            "within its tenant"
        )
    return TenantKey(identity(tenant, "tenant"), identity(key))


def stats_of(dispatcher: Dispatcher[Any]) -> Stats:
    """Return a snapshot. May be called in any thread."""
    lifecycle, ledger, gathering = dispatcher.lifecycle, dispatcher.ledger, dispatcher.gathering
    now = lifecycle.clock.now() if lifecycle.has_loop else 0.0
    held = gathering.gatherer.snapshot()
    tenants = gathering.gatherer if isinstance(gathering.gatherer, TenantGatherer) else None
    backing_off, spool = len(dispatcher.flights.backing_off), dispatcher.setup.spool
    return Stats(
        name=dispatcher.name,
        state=lifecycle.shown_state,
        tally=dispatcher.tally(),
        capacity_items=ledger.max_items,
        max_items=gathering.shape.max_items,
        max_delay=dispatcher.setup.limits.delay,
        workers=dispatcher.slots.limit,
        open_items=held.open_items,
        sealed_batches=held.sealed,
        in_flight_batches=len(dispatcher.flights) - backing_off,
        backing_off_batches=backing_off,
        waiting_producers=len(dispatcher.producers),
        waits=dispatcher.producers.waits,
        oldest_age=None if held.oldest_at is None else now - held.oldest_at,
        flushes={reason.value: n for reason, n in dispatcher.flights.by_reason.items()},
        held_keys=gathering.held_keys,
        held_items=gathering.held_items,
        tenants=0 if tenants is None else len(tenants),
        busiest_tenants=() if tenants is None else tuple(tenants.busiest(MOST_TENANTS, now)),
        throttled_seconds=max(0.0, lifecycle.throttled_until - now) if now else 0.0,
        destination=dispatcher.monitor.destination(now),
        last_error=dispatcher.monitor.last_error(now),
        retries=dispatcher.monitor.retries,
        spool=None if spool is None else spool.stats(),
    )
