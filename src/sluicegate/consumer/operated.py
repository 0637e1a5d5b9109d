"""The operators' interface of a consumer or a pipe."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from .._core import checks
from .._core.errors import ClosedError, ConfigError
from .._core.logs import log_safely
from .._core.opening import only_user
from .._core.order.keys import shown
from .._core.runtime.cuts import noticing_cuts
from .._core.runtime.run import note_opened
from .._core.runtime.threads import GRACE, Closing
from .engine import Engine
from .failures.dead_letters import LetterWriter
from .failures.poison import UNBLOCKING
from .lanes.schedule import Schedule
from .operating.health import NOT_OPEN, lags_of, wait_ready

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    from .._core.sink import Sink
    from .._core.source import Source, TopicPartition
    from .failures.parking import Unparked
    from .failures.poison import Unblocking
    from .operating.explain import Explanation
    from .operating.health import Health, Lag
    from .operating.report import BlockedMessage
    from .settings import ConsumerSettings


logger = logging.getLogger("sluicegate.consumer")
_NOT_CLOSED = "%s: the source did not close within %.3g s, and was cut off"


class Operated:
    """Reader of a source with views and actions for operators: the common part of a consumer and a
    pipe.
    """

    _opened_by = "`async with`"

    def __init__(
        self, source: Source, settings: ConsumerSettings, schedule: type[Schedule] = Schedule
    ) -> None:
        self._source = source
        self._settings = settings
        self._schedule = schedule
        self._engine: Engine | None = None
        self._closing = Closing()

    def _check_new(self) -> None:
        if self._engine is not None:
            raise ConfigError(f"{self!r} has been opened before; make a new one")

    async def _enter(self, stack: AsyncExitStack) -> Engine:
        """Open the dead letters, the park store and the source."""
        stack.enter_context(only_user(self))
        self._check_new()
        note_opened(self)
        letters = self._letters()
        if letters is not None:
            await stack.enter_async_context(letters.open())
        parked = self._settings.poison.parked
        if isinstance(parked, AbstractAsyncContextManager):
            await stack.enter_async_context(parked)
        engine = Engine(self._source, self._settings, letters, self._closing, self._schedule)
        stack.callback(engine.close)
        engine.announce()
        source = self._source.open(engine.claims)
        with noticing_cuts():
            await source.__aenter__()
        stack.push_async_exit(partial(self._leave, source))
        self._engine = engine
        return engine

    async def _leave(self, source: AbstractAsyncContextManager[object], *raised: Any) -> None:
        """Close the source, within the rest of the drain and 1 s; then cut it off."""
        self._closing.__enter__()  # closing may happen in another context
        seconds = self._closing.within(self._settings.drain + GRACE)
        clock = self._settings.clock
        limit = clock.timeout_at(clock.now() + seconds)
        try:
            async with limit:
                await source.__aexit__(*raised)
        except TimeoutError:
            if not limit.expired():
                raise
            log_safely(logger, logging.WARNING, _NOT_CLOSED, self._settings.name, seconds)

    def stop(self) -> None:
        """Begin the drain: `run` returns its report. A second call has no effect."""
        self._open().end()

    async def commit(self) -> None:
        """Store the positions now. Raises the source's error."""
        await self._open().committer.commit()

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop fetching from these partitions, or from all; unsettled messages are still handled.

        The pause of a partition lasts across rebalances, until `resume`.
        """
        self._open().claims.pause(partitions or None)

    def resume(self, *partitions: TopicPartition) -> None:
        """Fetch again from these partitions, or from all."""
        self._open().claims.resume(partitions or None)

    def stats(self) -> Any:
        """Return a snapshot of counts and levels. Thread-safe."""
        return self._open().stats()

    @property
    def name(self) -> str:
        """The consumer's name in logs, metrics and dead letters."""
        return self._settings.name

    @property
    def blocked(self) -> tuple[BlockedMessage, ...]:
        """Messages that could not be handled and keep their keys; the one blocked longest comes
        first.
        """
        return self._open().poison.blocked()

    def unblock(
        self,
        key: object,
        *,
        partition: TopicPartition | None = None,
        action: Unblocking = "retry",
    ) -> int:
        """Continue with the blocked messages of a key, and with the messages behind them.

        Args:
            key: the order key, as `blocked` shows it; `None` for records without a key, and for a
                consumer with `ordering="partition"`.
            partition: only messages of this partition; default: of any.
            action: `retry`: handle them again, with attempts from 1. `skip`: settle them without
                another attempt, with a dead letter if the consumer has dead letters and they have
                none yet; otherwise they are counted as `terminated` and logged.

        Returns their number. Does not suspend: a dead letter is written in the background, and the
        key waits for it. Raises `NoSuchKey`, which lists the blocked keys, if the key has no
        blocked message, and `ConfigError` for another action.
        """
        checks.choice("action", action, UNBLOCKING)
        return self._open().poison.unblock(key, partition, action)

    # -- for operators -----------------------------------------------------------------------------

    def explain(self) -> Explanation:
        """Return why each partition does not advance, and the condition that ends each wait;
        `str()` is for operators.

        Takes time in proportion to the number of unsettled messages. Call it in the loop's thread.
        """
        return self._open().sampler.explanation()

    async def lag(self) -> Mapping[TopicPartition, Lag]:
        """Return how far each partition is behind its end, in messages (by offsets) and in seconds.

        Suspends until the source has returned its ends. Raises the source's error.
        """
        return await lags_of(self._open().places)

    def health(self) -> Health:
        """Return readiness and liveness, with reasons. Thread-safe, at any time."""
        engine = self._engine
        return NOT_OPEN if engine is None else engine.sampler.health()

    @property
    def ready(self) -> bool:
        """Whether records are fetched and handled. False before the source's first assignment,
        while the source reports a problem, while the parked keys or the state of a partition are
        being read, and from the start of the drain on.
        """
        return self.health().is_ready

    @property
    def alive(self) -> bool:
        """Whether the consumer can continue. False once it has failed or ended, and while the event
        loop is blocked.
        """
        return self.health().is_alive

    @property
    def stalled(self) -> bool:
        """Whether nothing has been settled for `stall_after` seconds although there is work."""
        return self.health().stalled is not None

    async def wait_ready(self) -> None:
        """Suspend until `ready`. Raises `ClosedError` if the consumer ends first."""
        engine = self._open()
        await wait_ready(engine.places, engine.sampler.heart)

    async def unpark(self, key: object, *, partition: TopicPartition | None = None) -> Unparked:
        """Handle the parked records of a key, in order, and then continue with the key.

        Args:
            key: the order key, as for `unblock`.
            partition: only in this partition's scope; default: in any.

        The records are handled like any message, with attempts from 1, and removed from the park
        store one by one. If a record fails for good, it and the records behind it stay parked. New
        records of the key wait meanwhile.

        Suspends until that is done, or until the partition is lost or the consumer stops; then the
        remaining records stay parked. A cancelled call ends the replay after the message that is
        currently handled. Do not await it in a handler: it may need that handler's worker. Raises
        `NoSuchKey`, which lists the parked keys, if the key is not parked here, and the store's
        error if it cannot be read.
        """
        engine = self._open()
        if engine.poison.replays is None:
            raise ConfigError(
                f"{self._settings.name} has no Poison(parked=...), so no key is parked"
            )
        await engine.claims.wait_read()
        return await engine.poison.replays.unpark(key, partition)

    @property
    def parked(self) -> tuple[object, ...]:
        """The parked keys of the partitions that this consumer owns, as passed to `unpark`."""
        return tuple([shown(each.key) for each in self._open().schedule.parked])

    def _open(self) -> Engine:
        if self._engine is None:
            raise ClosedError(f"{self._settings.name} is not open; use {self._opened_by}")
        return self._engine

    def _letters(self) -> LetterWriter | None:
        settings = self._settings
        target = cast("Sink[Any] | None", settings.poison.dead_letters)
        return None if target is None else LetterWriter(target, settings.name, settings.clock)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source!r}, name={self._settings.name!r})"
