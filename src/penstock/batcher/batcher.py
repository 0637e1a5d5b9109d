"""The batcher's public face: how items get in, and how it is opened and closed.

*Yield first, append last*: whatever a producer has to wait for comes before its item is appended,
and nothing is awaited after. So a cancelled `add` has either put its item in, and returned, or has
not.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Generic, Literal, Never, TypeVar

from .._core import checks
from .._core.clock import LOOP_CLOCK, Clock, LoopClock
from .._core.errors import (
    AddTimeout,
    ClosedError,
    ConfigError,
    DrainTimeout,
    ForkedError,
    ItemTooLarge,
    KeyFailedError,
    LedgerFull,
)
from .._core.function_sink import as_sink
from .._core.ledger import Waiter
from .._core.opening import opened
from .._core.order.keys import identity
from .._core.runtime import process_fork
from .._core.runtime.loops import running_loop
from .._core.sink import capabilities_of
from . import log
from .arguments import (
    checked_adaptive,
    checked_handler,
    checked_key,
    checked_key_failure,
    checked_limits,
    checked_measure,
    checked_most_parked,
    checked_name,
    checked_observers,
    checked_size,
    checked_tenants,
    dead_letters_of,
    parked_dead_letters_of,
    refuse_misplaced,
)
from .bounds import Whole
from .dispatch import Engine
from .drain import Drain
from .gathering.add_group import AddGroup
from .gathering.arrange import arranged
from .gathering.keyed import KeyedAccumulator
from .gathering.tenants import TenantKey
from .limits import Limits
from .receipt import Receipt, ReceiptBase
from .report import MOST_TENANTS, FlushReport, ShutdownReport, Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from .._core.observer import Observer
    from .._core.order.parking import OnKeyFailure
    from .._core.outcome import Outcome
    from .._core.sink import SinkLike
    from .._core.tally import Tally
    from .adaptive.adaptive import Adaptive
    from .bounds import Bound
    from .dispatch import FailureHandler
    from .tenancy import Tenants

T = TypeVar("T")

RETRY_AFTER = 5.0
"""Seconds that a refused producer is told to wait when nobody knows better."""

Overflow = Literal["block", "reject", "drop_newest", "drop_oldest"]
Oversize = Literal["alone", "dead_letter", "reject"]


class Batcher(Generic[T]):
    """Gathers items and writes them to a sink in batches; every accepted item has exactly one
    outcome.

    Use it as `async with Batcher(sink) as batcher:`; leaving the block drains it, keeps the report
    in `report`, and raises `DrainTimeout` if something was left (unless `shutdown` was called
    inside and told so, or an exception is on its way: then it gets a note). It may be constructed
    anywhere: it needs a running loop only when entered, and may be entered again after it was
    closed.

    Args:
        sink: a sink, or a function of a batch (async, or plain: then it runs in a thread).
        limits: sizes, times and workers; see `Limits`.
        name: appears in logs, metrics and reports.
        overflow: with the ledger full, `"block"` makes `add` wait, `"reject"` makes it raise
            `LedgerFull`, `"drop_newest"` accepts and drops the new items, and `"drop_oldest"` makes
            room by dropping the oldest items that no worker has taken (the new ones, where there
            are none). What is dropped ends `dropped`, is counted, and its receipts say so.
        oversize: an item larger than `max_bytes` goes `"alone"` in a batch, or `add` raises
            `ItemTooLarge` (`"reject"`), or it goes to the dead letters without having been tried
            (`"dead_letter"`; the stack must have a `DeadLetter`).
        size_of: measures an item in bytes; needed with `max_bytes` or `max_pending_bytes` unless
            items are bytes-like.
        key: a function from an item to its key. Items of one key are then written in the order in
            which they were accepted, with as many workers as you like: a key is in at most one
            batch at a time, and waits while an item of it backs off. A sink that is not
            `key_prefix_safe` gets at most one item of a key per batch. See `penstock._core.order.keys`
            for when two keys are the same; an item whose key cannot be one is refused with
            `TypeError`. The function must not use this batcher.
        on_key_failure: what becomes of a key's later items when one has ended dead-lettered or
            rejected: `"skip"`, they go on; `"pause"`, they stay inside until `resume(key)`;
            `"park"`, the same with a bound, beyond which they go to the dead letters of the stack,
            oldest first and in order, until `unpark(key)`; `"fail"`, those inside end rejected and
            new ones are refused with `KeyFailedError`, until `resume(key)`. What is held takes room
            in the ledger, no flush waits for it, and a shutdown hands it back unsent. With `tenant`
            a key is a key within its tenant: only that tenant's is held, and `resume` and `unpark`
            take `tenant=` as well.
        max_parked_items: with `"park"`, how many items of a key are held at most; 1,000 by default.
        tenant: a function from an item to its tenant. A batch then belongs to one tenant, whose own
            time and size end it, and tenants that have something to send share the workers fairly;
            one that backs off or is throttled costs the others nothing. With one worker and no
            `key` a tenant's items are in order. Tenants are told apart as keys are, and the same
            key in two of them is two keys.
        tenants: what each tenant may have, and its weight; see `Tenants`.
        on_failure: what to do with items that end rejected or unknown, beyond counting and logging
            them: `"log"` nothing, `"crash"` stop for good, or a function of (items, error).
        shutdown_deadline: seconds that leaving the block may take, everything included.
        last_resort: a sink (or function) that is given what is known not to be applied when a
            shutdown's deadline nears, within a fifth of the deadline; what it takes ends
            `dead_lettered`, the rest `unsent`. Opened and closed with the batcher.
        adaptive: let the batcher find its concurrency and batch size below the limits; see
            `Adaptive`. Off by default. With `workers=1` only the size adapts, and order stays
            total.
        observers: watchers of this batcher.
        clock: where the time comes from; the running loop by default.

    Raises:
        ConfigError: a bad argument, naming it, its value and the rule. Nothing has been started.
    """

    def __init__(
        self,
        sink: SinkLike[T],
        *,
        limits: Limits | None = None,
        name: str = "batcher",
        overflow: Overflow = "block",
        oversize: Oversize = "alone",
        size_of: Callable[[T], int] | None = None,
        key: Callable[[T], object] | None = None,
        on_key_failure: OnKeyFailure = "skip",
        max_parked_items: int | None = None,
        tenant: Callable[[T], object] | None = None,
        tenants: Tenants | None = None,
        on_failure: Literal["log", "crash"] | FailureHandler = "log",
        shutdown_deadline: float | timedelta = 25.0,
        last_resort: SinkLike[T] | None = None,
        adaptive: Adaptive | None = None,
        observers: Iterable[Observer] = (),
        clock: Clock | None = None,
        **misplaced: Never,
    ) -> None:
        refuse_misplaced(Batcher, misplaced)
        self._sink = as_sink(sink)
        self._limits = checked_limits(Limits() if limits is None else limits, self._sink)
        self._key = checked_key("key", key)
        self._tenant = checked_key("tenant", tenant)
        self._on_key_failure: OnKeyFailure = checked_key_failure(on_key_failure, key)
        self._max_parked_items = checked_most_parked(max_parked_items, self._on_key_failure)
        self._sink_of_parked = (
            parked_dead_letters_of(self._sink) if on_key_failure == "park" else None
        )
        self._name = checked_name(name)
        self._overflow = checks.choice(
            "overflow", overflow, ("block", "reject", "drop_newest", "drop_oldest")
        )
        self._oversize = checks.choice("oversize", oversize, ("alone", "dead_letter", "reject"))
        self._sink_of_oversize = dead_letters_of(self._sink) if oversize == "dead_letter" else None
        self._sized = (
            self._limits.max_bytes is not None or self._limits.max_pending_bytes is not None
        )
        self._tenants = checked_tenants(tenants, tenant, sized=self._sized)
        self._measure = checked_measure(size_of, sized=self._sized)
        self._on_failure = checked_handler(on_failure)
        self._shutdown_deadline = checks.seconds("shutdown_deadline", shutdown_deadline, zero=True)
        self._last_resort = None if last_resort is None else as_sink(last_resort)
        self._adaptive = checked_adaptive(adaptive, self._limits)
        self._observers = checked_observers(observers)
        self._clock: Clock = LOOP_CLOCK if clock is None else clock
        self._state = "new"
        self._engine = self._new_engine()
        self._drain: Drain[T] | None = None
        self._opened: AsyncExitStack | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.report: ShutdownReport[T] | None = None
        """The report of the last shutdown; `None` before."""

    def _new_engine(self) -> Engine[T]:
        accumulator = arranged(
            self._limits,
            sized=self._sized,
            key=self._key,
            tenant=self._tenant,
            tenants=self._tenants,
            repeats=capabilities_of(self._sink).key_prefix_safe,
            evicts=self._overflow == "drop_oldest",
            on_key_failure=self._on_key_failure,
            max_parked_items=self._max_parked_items,
        )
        engine = Engine(
            self._sink,
            self._limits,
            name=self._name,
            clock=self._clock,
            observers=self._observers,
            on_failure=self._on_failure,
            sized=self._sized,
            sink_of_oversize=self._sink_of_oversize,
            adaptive=self._adaptive,
            accumulator=accumulator,
            sink_of_parked=self._sink_of_parked,
        )
        if isinstance(accumulator, KeyedAccumulator):
            accumulator.begun, accumulator.passed, accumulator.over = (
                engine.begun,
                engine.passed,
                engine.slot_given,
            )
            accumulator.raised = engine.unlisted.raised_by_function
        return engine

    # -- opening and closing -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._check_here()
        if self._state not in {"new", "closed"}:
            message = (
                f"batcher {self._name!r} is {self._state}; enter it once, and share the object"
            )
            raise ConfigError(message)
        self._state = "opening"
        engine = self._new_engine()
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(opened(self._sink))
                if self._last_resort is not None:
                    await stack.enter_async_context(opened(self._last_resort))
                self._opened = stack.pop_all()
        except BaseException:
            self._state = "new"
            raise
        process_fork.watch(self)
        self._loop = asyncio.get_running_loop()
        if isinstance(engine.clock, LoopClock):
            engine.clock = LoopClock(
                self._loop
            )  # so that a thread that scrapes metrics can read it as well
        self._engine, self._drain, self.report = engine, None, None
        engine.accepting = True
        self._state = "open"
        engine.observers.tell(lambda observer: observer.on_open(self._name, self.stats))
        engine.observers.tell(lambda observer: observer.on_state(self._name, "open"))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        was_told = (
            self.report is not None
        )  # a shutdown inside the block has handed its report over already
        report = await self.shutdown()
        if report.complete or was_told:
            return
        if error is None:
            raise DrainTimeout(report)
        error.add_note(str(report))

    async def shutdown(
        self, deadline: float | timedelta | None = None, *, admit_waiting: bool = False
    ) -> ShutdownReport[T]:
        """Stop accepting, write what is inside, close the sink; return where every item ended,
        within `deadline` seconds.

        `deadline` defaults to the batcher's `shutdown_deadline`. Any number may call: there is one
        shutdown, all get its report, and the earliest deadline wins. Producers that wait for room
        get `ClosedError`; with `admit_waiting` (of the first call) they are let in as room comes
        free: the open batch is sealed as `shutdown_request` and their items as `shutdown`. It never
        raises for the deadline; see `report.complete`. Suspends until the shutdown has ended. Being
        cancelled means *now*: the deadline becomes the present, the shutdown ends, then the
        cancellation goes on.
        """
        seconds = (
            self._shutdown_deadline
            if deadline is None
            else checks.seconds("deadline", deadline, zero=True)
        )
        self._check_here()
        if self._state in {"new", "opening"}:
            raise ClosedError(f"batcher {self._name!r} is not open: use `async with batcher:`")
        if self.report is not None:
            return self.report
        if self._drain is None:
            self._state = "closing"
            self._engine.observers.tell(lambda observer: observer.on_state(self._name, "closing"))
            self._drain = Drain(
                self._engine,
                self._close_sink,
                seconds,
                admit_waiting=admit_waiting,
                last_resort=self._last_resort,
            )
        else:
            self._drain.hasten(seconds)
        return await self._wait_for(self._drain)

    async def _wait_for(self, drain: Drain[T]) -> ShutdownReport[T]:
        cancelled: asyncio.CancelledError | None = None
        while not drain.task.done():
            try:
                await asyncio.wait([drain.task])
            except asyncio.CancelledError as error:
                cancelled = error
                drain.hasten(0.0)
            if drain.task.cancelled():
                drain.begin_again()
        report = drain.task.result()
        if self.report is None:
            self.report = report
            self._state = "closed"
            self._engine.observers.tell(lambda observer: observer.on_state(self._name, "closed"))
        if cancelled is not None:
            raise cancelled
        return self.report

    async def aclose(self) -> None:
        """Shut down within the default deadline; `report` keeps the result."""
        await self.shutdown()

    async def _close_sink(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()

    # -- items -------------------------------------------------------------------------------------

    async def add(self, item: T, *, timeout: float | timedelta | None = None) -> None:
        """Accept `item` in memory; wait while the ledger is full.

        `timeout` in seconds (default: none) bounds the wait. Raises `AddTimeout` when it ends,
        `ClosedError` once the batcher is closed, `ItemTooLarge` for what can never fit,
        `KeyFailedError` for a key that failed (`on_key_failure="fail"`); in each case, and on
        cancellation, the item was not accepted. Usually returns without suspending; now and then it
        lets other tasks run first.
        """
        engine = self._engine
        items = engine.items
        if len(items) < engine.limit:
            items.append(item)
            return
        await self._accept((item,), (None,), timeout)

    def try_add(self, item: T) -> bool:
        """Accept `item` if there is room now; never waits.

        False when the ledger is full, somebody else waits for room, its key has failed, it is too
        large, or the batcher is closed: it counts as refused then. With `overflow="drop_newest"`
        what finds no room counts as dropped; with `"drop_oldest"` it takes the place of older ones.
        """
        engine = self._engine
        items = engine.items
        if len(items) < engine.try_limit:
            items.append(item)
            return True
        self._check_here()
        if self._state != "open" or not engine.accepting:
            engine.refused += 1
            return False
        try:
            if self._takes_at_once(self._parcel((item,), (None,))):
                return True
        except (ItemTooLarge, KeyFailedError):
            return False
        if self._drops:
            engine.drop((item,), (None,))
        else:
            engine.refused += 1
        return False

    async def add_many(
        self, items: Iterable[T], *, timeout: float | timedelta | None = None
    ) -> None:
        """Accept all of `items`, in order and together, or none; wait while they do not fit. Raises
        and suspends as `add`.
        """
        together = tuple(items)
        if together:
            await self._accept(together, (None,) * len(together), timeout)

    async def add_from(
        self, source: AsyncIterable[T] | Iterable[T], *, timeout: float | timedelta | None = None
    ) -> int:
        """Add every item of `source` as fast as the sink takes them; return how many.

        `timeout` bounds the wait of each item. On an exception or cancellation what was added
        before stays added.
        """
        added = 0
        if isinstance(source, AsyncIterable):
            async for item in source:
                await self.add(item, timeout=timeout)
                added += 1
            return added
        for item in source:
            await self.add(item, timeout=timeout)
            added += 1
        return added

    async def submit(self, item: T, *, timeout: float | timedelta | None = None) -> Receipt:
        """As `add`, and return a receipt: `await receipt` gives the item's outcome or raises
        `ItemFailed`.
        """
        receipt = Receipt()
        engine = self._engine
        items = engine.items
        filled = len(items)
        if filled < engine.limit:
            engine.accumulator.receipts[filled] = receipt
            items.append(item)
        else:
            await self._accept((item,), (receipt,), timeout)
        return receipt

    async def deliver(self, item: T, *, timeout: float | timedelta | None = None) -> Outcome:
        """Add `item` and wait for its outcome; raises `ItemFailed` unless it is safe somewhere.

        `timeout` bounds the wait for room only. Cancellation after the item was accepted leaves it
        inside.
        """
        return await (await self.submit(item, timeout=timeout))

    async def _accept(
        self,
        items: tuple[T, ...],
        receipts: tuple[ReceiptBase | None, ...],
        timeout: float | timedelta | None,
    ) -> None:
        """The long way in: measure, let others run, wait for room; then, in one stretch, append."""
        engine = self._engine
        seconds = checks.optional_seconds("timeout", timeout, zero=True)
        self._check_open()
        if engine.yield_due:
            engine.yielded()
            await self._clock.sleep(0)
            self._check_open()
        engine.came(len(items))
        parcel = self._parcel(items, receipts)
        if self._takes_at_once(parcel):
            return
        if self._drops:
            engine.drop(items, receipts)
        elif self._overflow == "reject" or seconds == 0:
            self._refuse_to_wait(parcel)
        else:
            await self._wait_for_room(parcel, seconds)

    @property
    def _drops(self) -> bool:
        return self._overflow in {"drop_newest", "drop_oldest"}

    def _parcel(
        self, items: tuple[T, ...], receipts: tuple[ReceiptBase | None, ...]
    ) -> AddGroup[T]:
        """Items with what belongs to them. Raises `ItemTooLarge`, `KeyFailedError`, and whatever
        the functions that are asked raise.
        """
        try:
            sizes = self._measured(items)
            self._check_sizes(sizes)
            keys = tuple(map(self._engine.accumulator.identity, items))
        except (ItemTooLarge, KeyFailedError):
            self._engine.refused += len(items)
            raise
        except Exception as error:
            self._engine.unlisted.raised_by_function(error)
            raise
        return AddGroup(items, sizes, receipts, keys)

    def _takes_at_once(self, parcel: AddGroup[T]) -> bool:
        """Take it in if there is room everywhere, or older items make some. None of those go where
        that would not do.
        """
        engine = self._engine
        wants = self._wants(parcel)
        if engine.admits(len(parcel.items), sum(parcel.sizes)) and (
            not wants or all(want.fits for want in wants)
        ):
            engine.accept(parcel)
            return True
        bounds = self._bounds(parcel)
        if self._overflow != "drop_oldest" or not all(bound.may_fit for bound in bounds):
            return False
        gone = [item for bound in bounds for item in engine.evict_for(bound)]
        engine.accept(parcel)
        engine.tell_dropped(gone)
        return True

    def _wants(self, parcel: AddGroup[T]) -> Sequence[Bound[T]]:
        """The parts of the tenants, where those are bounded. Raises `ItemTooLarge`."""
        try:
            return self._engine.accumulator.wants(parcel.keys, parcel.sizes)
        except ItemTooLarge:
            self._engine.refused += len(parcel.items)
            raise

    def _bounds(self, parcel: AddGroup[T]) -> list[Bound[T]]:
        """All that has to have room."""
        return [*self._wants(parcel), Whole(self._engine, parcel)]

    def _refuse_to_wait(self, parcel: AddGroup[T]) -> Never:
        """A full ledger rejects, or no time is given to wait."""
        self._engine.refused += len(parcel.items)
        kind = LedgerFull if self._overflow == "reject" else AddTimeout
        full = next(bound for bound in self._bounds(parcel) if not bound.fits).full
        raise kind(f"batcher {self._name!r}: {full}", retry_after=self._retry_after())

    async def _wait_for_room(self, parcel: AddGroup[T], seconds: float | None) -> None:
        """Have room in one bound after the other; what is had of the first is kept meanwhile, and
        handed on by whoever gives up.
        """
        engine = self._engine
        joined: list[tuple[Bound[T], Waiter]] = []
        is_in = False
        engine.waits += 1
        try:
            async with self._clock.timeout_at(
                None if seconds is None else self._clock.now() + seconds
            ):
                for bound in self._bounds(parcel):
                    waiter = Waiter(
                        bound.items, bound.size, asyncio.get_running_loop().create_future()
                    )
                    joined.append((bound, waiter))
                    bound.join(waiter)
                    if not waiter.granted:
                        await self._granted(waiter)
                engine.accept(parcel)
                is_in = True
        except TimeoutError:
            message = f"batcher {self._name!r}: no room within {seconds:g} s; {joined[-1][0].full}"
            raise AddTimeout(message, retry_after=self._retry_after()) from None
        finally:
            if not is_in:
                engine.refused += len(parcel.items)
            for bound, waiter in joined:
                bound.leave(waiter)
            engine.changed()

    async def _granted(self, waiter: Waiter) -> None:
        """Return, without having suspended since, once the room is ours."""
        engine = self._engine
        engine.waiting.add(waiter)
        engine.advance(self._clock.now())
        try:
            await waiter.future
        finally:
            engine.waiting.discard(waiter)
        if not engine.admitting:
            self._check_open()

    def _measured(self, items: tuple[T, ...]) -> tuple[int, ...]:
        return (
            tuple(checked_size(self._measure(item)) for item in items)
            if self._sized
            else (0,) * len(items)
        )

    def _check_sizes(self, sizes: tuple[int, ...]) -> None:
        """Raise `ItemTooLarge` for what may not come in, or could never fit."""
        most, room = self._limits.max_bytes, self._engine.room
        if self._oversize == "reject" and most is not None and max(sizes) > most:
            raise ItemTooLarge(f"an item of {max(sizes)} bytes is larger than max_bytes={most}")
        if not room.could_ever_fit(len(sizes), sum(sizes)):
            caps = f"max_pending_items={room.max_items}, max_pending_bytes={room.max_bytes}"
            raise ItemTooLarge(f"{len(sizes)} items of {sum(sizes)} bytes can never fit: {caps}")

    def after_fork(self) -> None:
        """This is a forked child: what is inside belongs to the parent."""
        process_fork.leave_to_parent(self._engine, self._drain, self._opened)
        self._engine, self._drain, self._opened, self.report = self._new_engine(), None, None, None
        self._state = "forked"

    def _check_fork(self) -> None:
        if self._state == "forked":
            message = (
                f"batcher {self._name!r} was opened by the parent of this forked "
                "process; make a new Batcher here (its sink may be used again)"
            )
            raise ForkedError(message)

    def _check_here(self) -> None:
        """That this is the process, and the loop, in which it is open."""
        self._check_fork()
        if self._state in {"open", "closing"} and running_loop() is not self._loop:
            message = (
                f"batcher {self._name!r} is open on another event loop, and may be used "
                "only there; for threads, use a BlockingBatcher"
            )
            raise ConfigError(message)

    def _check_open(self) -> None:
        self._check_here()
        if self._state in {"new", "opening"}:
            raise ClosedError(f"batcher {self._name!r} is not open: use `async with batcher:`")
        if not self._engine.accepting:
            raise self._engine.closed_error()

    def _retry_after(self) -> float:
        return max(RETRY_AFTER, self._engine.throttled_until - self._clock.now())

    # -- asking ------------------------------------------------------------------------------------

    async def flush(self, timeout: float | timedelta | None = None) -> FlushReport:
        """Write everything accepted before this call, and wait for its outcomes; items added later
        are not dragged in.

        `timeout` in seconds (default: none) bounds the wait; the report then says how many
        remained. On a closed batcher it returns what remained at once. Raises `BatcherBroken` on a
        broken one. Cancellation leaves the batches on their way.
        """
        engine = self._engine
        seconds = checks.optional_seconds("timeout", timeout, zero=True)
        self._check_here()
        if engine.broken is not None:
            raise engine.closed_error()
        if self._state != "open":
            return FlushReport(remaining=engine.inside, outcomes={})
        now = self._clock.now()
        engine.seal_open(now)
        fence = engine.fence()
        engine.advance(now)
        try:
            async with self._clock.timeout_at(None if seconds is None else now + seconds):
                await fence.passed
        except TimeoutError:
            pass  # the report says what remained
        finally:
            engine.remove(fence)
        if engine.broken is not None:
            raise engine.closed_error()
        held = engine.accumulator.held_until(fence.number)
        return FlushReport(remaining=engine.before(fence) + held, outcomes=dict(fence.outcomes))

    def resume(self, key: object, *, tenant: object = ...) -> int:
        """Let a key go on that `on_key_failure` has paused or failed; return how many items were
        held.

        What is held goes first, in order. A key that is not held stays as it is. `tenant` is the
        key's tenant, and needed where the batcher has tenants. Raises `ConfigError` unless the
        policy is `"pause"` or `"fail"`, and for a tenant that is missing or has no meaning;
        `TypeError` for what cannot be a key or a tenant. Never suspends.
        """
        return self._let_go("resume", key, tenant, ("pause", "fail"))

    def unpark(self, key: object, *, tenant: object = ...) -> int:
        """Let a key go on that `on_key_failure` has parked; return how many items were held.

        What is held goes first, in order. What was spilled to the dead letters comes before it:
        bring that back first. A key that is not parked stays as it is. `tenant` is the key's
        tenant, and needed where the batcher has tenants. Raises `ConfigError` unless the policy is
        `"park"`, and for a tenant that is missing or has no meaning; `TypeError` for what cannot be
        a key or a tenant. Never suspends.
        """
        return self._let_go("unpark", key, tenant, ("park",))

    def _let_go(self, name: str, key: object, tenant: object, policies: tuple[str, ...]) -> int:
        self._check_here()
        if self._on_key_failure not in policies:
            raise checks.bad(
                "on_key_failure",
                self._on_key_failure,
                f"{name}() needs one of {', '.join(policies)}",
            )
        known = self._known(name, key, tenant)
        return self._engine.let_go(known) if self._state == "open" else 0

    def _known(self, name: str, key: object, tenant: object) -> Hashable:
        """What the accumulator knows a key by."""
        if self._tenant is None:
            if tenant is not ...:
                raise checks.bad(
                    "tenant", tenant, f"{name}() takes none, since the batcher has no tenant="
                )
            return identity(key)
        if tenant is ...:
            raise ConfigError(
                f"{name}({key!r}) needs tenant=, since the batcher has tenants: a key is a key "
                "within its tenant"
            )
        return TenantKey(identity(tenant, "tenant"), identity(key))

    @property
    def name(self) -> str:
        """The batcher's name."""
        return self._name

    @property
    def limits(self) -> Limits:
        """The limits. What an adaptive batcher has found below them is in `stats()`."""
        return self._limits

    def tally(self) -> Tally:
        """The counts of all outcomes and of what is inside, at this moment."""
        return self._engine.tally()

    def stats(self) -> Stats:
        """A snapshot of the batcher. Never suspends; works before opening and after closing, and
        from any thread.

        From another thread than the loop's it may catch the batcher in the middle of a step: then
        its counts need not add up.
        """
        engine = self._engine
        accumulator = engine.accumulator
        now = engine.clock.now() if self._state in {"open", "closing"} else 0.0
        oldest = accumulator.oldest_at
        return Stats(
            name=self._name,
            state="broken" if engine.broken is not None and self._state == "open" else self._state,
            tally=engine.tally(),
            capacity_items=engine.room.max_items,
            max_items=accumulator.max_items,
            workers=engine.slots.limit,
            open_items=accumulator.open_items,
            sealed_batches=accumulator.sealed,
            in_flight_batches=sum(1 for flight in tuple(engine.flights) if not flight.backing_off),
            backing_off_batches=sum(1 for flight in tuple(engine.flights) if flight.backing_off),
            waiting_producers=len(engine.waiting),
            waits=engine.waits,
            oldest_age=None if oldest is None else now - oldest,
            flushes=dict(engine.flushes),
            held_keys=accumulator.held_keys,
            held_items=accumulator.held,
            tenants=accumulator.tenants,
            busiest_tenants=tuple(accumulator.busiest(MOST_TENANTS, now)),
            throttled_seconds=max(0.0, engine.throttled_until - now) if now else 0.0,
            destination=engine.monitor.destination(now),
            last_error=engine.monitor.last_error(now),
            retries=engine.monitor.retries,
        )

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Say so when items are inside: nobody can drain them any more."""
        if getattr(self, "_state", "new") in {"open", "closing"} and self._engine.inside:
            message = (
                f"batcher {self._name!r} was dropped with items inside "
                f"({self._engine.tally()}); use `async with`, or await shutdown()"
            )
            log.dropped(message)
            _warn(message, ResourceWarning, source=self)

    def __repr__(self) -> str:
        tally = self._engine.tally()
        return (
            f"Batcher(name={self._name!r}, state={self._state!r}, queue={tally.queued}, "
            f"enq={tally.enqueued}, "
            f"ok={tally.flushed_ok}, fail={tally.flushed_fail}, "
            f"drop={tally.dropped + tally.unsent})"
        )
