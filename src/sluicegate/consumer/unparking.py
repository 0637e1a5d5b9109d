"""The replay of parked keys: `unpark`.

1. The records of the key are handled one after another in the order in which they were parked. As
   for any message, workers run the handler, and retries start at attempt 1. New records wait behind
   them.
2. A record is removed from the store once it is handled or has a dead letter. If a record fails for
   good, it and the records behind it stay in the store, and the key stays parked.
3. If its claim ends meanwhile, the remaining records stay parked for the next owner.
4. A replayed message has a negative index: the position passed it when it was parked.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from .._core.clock import wait_until
from .._core.logs import for_log, log_safely
from .._core.order.keys import shown
from .._core.source import TopicPartition
from .named_keys import is_same, none_of
from .wait_reason import WaitReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._core.park_store import ParkedRecord, ParkStore
    from .claim import Claim
    from .commons import Commons
    from .departures import Departures
    from .errands import Errands
    from .insisting import Insisting
    from .message import Message
    from .parked_keys import ParkedKey
    from .parker import Parker
    from .schedule import Schedule

logger = logging.getLogger("sluicegate.consumer")

PAGE = 100
"""Number of parked records that are read at once."""

_FAILED = "%s: %s stays parked, with the records behind it (%s)"


@dataclass(frozen=True, slots=True)
class Unparked:
    """The result of `unpark`."""

    handled: int
    """Records that were handled or written to the dead letters, and then removed from the store."""
    is_done: bool
    """Whether the key continues; otherwise at least one record stays parked."""
    error: BaseException | None = None
    """Why a record failed; `None` if its claim has ended."""


class ReplayEnd(NamedTuple):
    """The end of one replayed message."""

    is_handled: bool
    error: BaseException | None = None


class Replaying(NamedTuple):
    """A message that is being replayed."""

    parked: ParkedKey
    record: ParkedRecord
    end: asyncio.Future[ReplayEnd]


class Replays:
    """Replay of the records of parked keys."""

    def __init__(
        self,
        store: ParkStore,
        schedule: Schedule,
        errands: Errands,
        commons: Commons,
        *,
        parker: Parker,
        departures: Departures,
        insisting: Insisting,
    ) -> None:
        self._store = store
        self._schedule = schedule
        self._errands = errands
        self._name = commons.name
        self._clock = commons.clock
        self._signals = commons.signals
        self._counts = commons.counts
        self._parker = parker
        self._departures = departures
        self._insisting = insisting
        self._indices = count(-1, -1)
        self._running: dict[Message, Replaying] = {}

    async def unpark(self, key: object, partition: TopicPartition | None) -> Unparked:
        """Replay a key in each scope in which it is parked. Raises `NoSuchKey`, or the store's
        error.

        Suspends until the records have been handled. A cancelled call ends the replay after the
        message that is currently handled.
        """
        found = [each for each in self._schedule.parked if self._matches(each, key, partition)]
        if not found:
            shown_keys = [repr(shown(each.key)) for each in self._schedule.parked]
            raise none_of("parked", key, partition, shown_keys)
        done = [await self._replay(each) for each in found]
        errors = [each.error for each in done if each.error is not None]
        return Unparked(
            sum([each.handled for each in done]),
            all(each.is_done for each in done),
            errors[0] if errors else None,
        )

    def _matches(self, parked: ParkedKey, key: object, partition: TopicPartition | None) -> bool:
        scope = self._schedule.parked.claims_of(parked)
        of_scope = partition is None or any(claim.partition == partition for claim in scope)
        return of_scope and is_same(shown(parked.key), key) and not parked.is_replayed

    # -- the replay of one key ---------------------------------------------------------------------

    async def _replay(self, parked: ParkedKey) -> Unparked:
        if parked.is_replayed:  # another call has started the replay meanwhile
            return Unparked(0, is_done=False)
        handled = 0
        parked.replay(begins=True)
        try:
            while parked.is_going:  # a record is being written, or an older turn is not over
                await wait_until(self._clock, math.inf, self._signals.settled)
            while records := await self._store.first(self._name, parked.name, PAGE):
                for record in records:
                    end = await self._handle(parked, record)
                    if not end.is_handled:
                        return Unparked(handled, is_done=False, error=end.error)
                    handled += 1
            self._schedule.release(parked)
            self._signals.work.fire()
            return Unparked(handled, is_done=True)
        finally:
            parked.replay(begins=False)
            self._parker.go_on(parked)

    async def _handle(self, parked: ParkedKey, record: ParkedRecord) -> ReplayEnd:
        """Handle a record and remove it from the store; suspend until done or failed."""
        while parked in self._schedule.parked and parked.is_going:  # an event is finalised
            await wait_until(self._clock, math.inf, self._signals.settled)
        claim = self._claim_of(parked, record)
        if claim is None:
            return ReplayEnd(is_handled=False)
        size = self._schedule.sizes.of([record])[0]
        make = self._schedule.message_type
        message = make(parked.key, size, record, claim, next(self._indices))
        end: asyncio.Future[ReplayEnd] = asyncio.get_running_loop().create_future()
        self._running[message] = Replaying(parked, record, end)
        self._schedule.replay(message)
        self._signals.work.fire()
        return await end

    def _claim_of(self, parked: ParkedKey, record: ParkedRecord) -> Claim | None:
        """Return an open claim of the key's scope, preferably that of the record's partition."""
        if parked not in self._schedule.parked:
            return None
        claims = [each for each in self._schedule.parked.claims_of(parked) if not each.is_closing]
        own = TopicPartition(record.topic, record.partition)
        return min(claims, key=lambda claim: claim.partition != own, default=None)

    # -- the end of a replayed message -------------------------------------------------------------

    def handled(self, message: Message) -> None:
        """Remove a handled message from the store; its turn continues until then."""
        work, cut = self._remove(message), partial(self.left, message)
        self._errands.start(message, work, cut, WaitReason.PARKING)

    async def _remove(self, message: Message) -> None:
        replaying = self._running[message]
        remove = partial(self._store.remove, self._name, replaying.parked.name, [replaying.record])
        what = f"removing {message.coordinates} from the park store"
        if await self._insisting.on(remove, what, message.claim):
            self._counts.count("unparked")
            self._departures.free(message)
            self._end(message, ReplayEnd(is_handled=True))
        else:
            self.left(message)

    def failed(self, message: Message, error: BaseException) -> None:
        """Keep a message that is poison again in the store."""
        log_safely(logger, logging.ERROR, _FAILED, self._name, message.coordinates, for_log(error))
        self._departures.free(message)
        self._end(message, ReplayEnd(is_handled=False, error=error))

    def left(self, message: Message) -> None:
        """Keep a message in the store because its claim ends."""
        self._departures.leave(message)
        self._end(message, ReplayEnd(is_handled=False))

    def dropped(self, messages: Iterable[Message]) -> None:
        """End the replay of messages that have left with their claims."""
        for message in messages:
            if message.is_unparked:
                self._end(message, ReplayEnd(is_handled=False))

    def _end(self, message: Message, replayed: ReplayEnd) -> None:
        message.claim.attempts.pop(message.index, None)
        parked, _, end = self._running.pop(message)
        if not end.done():  # the caller of `unpark` was not cancelled
            end.set_result(replayed)
        self._parker.go_on(parked)
