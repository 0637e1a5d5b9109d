"""Parking: the records of a poisoned key go to the park store, in order, until `unpark`.

1. The poison record parks its key. Every later record of the key is written behind it, one after
   another, before the position may pass it. Other keys continue.
2. A failed write is repeated, and the key's other records wait behind it. A write cancelled by a
   revoke or a drain leaves its record to the next owner. The store keeps each record once, so
   writing a record again that was written but not committed has no effect.
3. Nothing is fetched for a new claim until the parked keys of its scope are read from the store: no
   record of a parked key runs, regardless of the process that parked it.

`unpark` replays the records of a key.

4. They are handled one after another in the order in which they were parked. As for any message,
   workers run the handler, and retries start at attempt 1. New records wait behind them.
5. A record is removed from the store once it is handled or has a dead letter. If a record fails for
   good, it and the records behind it stay in the store, and the key stays parked.
6. If its claim ends meanwhile, the remaining records stay parked for the next owner.
7. An operator's request, which the store keeps, has the same effect as a call of `unpark`. It is
   taken before the replay, so that it is carried out once.
8. A replayed message has a negative index: the position passed it when it was parked.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..._core.clock import wait_until
from ..._core.logs import for_log, log_safely, storable
from ..._core.order.keys import PLAIN, key_of, key_text, shown
from ..._core.park_store import ParkedRecord
from ..._core.source import TopicPartition
from ..._core.text import text_of
from ..handling.steps import error_of_decoding
from ..lanes.keys import is_same, none_of
from ..operating.report import WaitReason

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from ..._core.park_store import ParkStore, UnparkRequests
    from ..lanes.held import ParkedKey
    from ..lanes.keys import KeyRules
    from ..lanes.message import Message
    from ..lanes.schedule import Schedule
    from ..progress.claim import Claim
    from ..run import Run
    from .departures import Departures


logger = logging.getLogger("sluicegate.consumer")

_PARKED = "%s: %s parks its key until unpark() (%s)"
_READ = "%s: %d keys of %s are parked until unpark()"
BEHIND = "behind a poisoned record of its key"

PAGE = 100
"""Number of parked records read by one call."""
LOOK_EVERY = 2.0
"""Interval in seconds between two checks for requests to unpark."""
_REQUESTED = "%s: unparking %s was requested; %d records are handled"
_UNREAD = "%s: looking for requests to unpark keys failed (%s)"
_FAILED = "%s: %s stays parked, with the records behind it (%s)"


class NewClaims(Protocol):
    """The claims whose parked keys are not known yet."""

    def unread(self) -> Sequence[Claim]:
        """Return the open ones among them."""
        ...

    def read(self, *claims: Claim) -> None:
        """Record that the parked keys of claims are known."""


class NamedKey(NamedTuple):
    """A lane's key and its name in the park store."""

    key: Hashable
    name: str


class Parker:
    """Writer of the records of parked keys to the park store."""

    def __init__(
        self,
        store: ParkStore,
        schedule: Schedule,
        departures: Departures,
        run: Run,
        keys: KeyRules,
    ) -> None:
        self._store = store
        self._schedule = schedule
        self._departures = departures
        self._run = run
        self._keys = keys

    # -- writing -----------------------------------------------------------------------------------

    def take(self, message: Message, error: BaseException) -> None:
        """Park a poison message and later ones of its key; its turn continues until it is
        parked.
        """
        log_safely(
            logger, logging.ERROR, _PARKED, self._run.name, message.coordinates, for_log(error)
        )
        claim, key = message.claim, message.lane_key
        name = self._keys.name_of(claim.partition, key)
        self._schedule.begin_parking(message)
        self._schedule.parked.park(claim.lanes, key, name)
        self._start(message, name, error)

    def look(self) -> None:
        """Begin to write the records of parked keys that have arrived."""
        parked = self._schedule.parked
        for each in parked.take_fed():
            self.go_on(each)
        if parked.are_fed:
            self._run.parking.fire()

    def go_on(self, parked: ParkedKey) -> None:
        """Begin to write the next record of a key, or mark the key if one of its turns is running,
        such as that of an event being finalised.
        """
        message = parked.next() if parked in self._schedule.parked else None
        if message is not None:
            self._start(message, parked.name, None)
        elif self._schedule.parked.feed(parked):
            self._run.parking.fire()

    def _start(self, message: Message, name: str, error: BaseException | None) -> None:
        self._departures.start(
            message,
            self._park(message, name, error),
            partial(self._left, message),
            WaitReason.PARKING,
        )

    async def _park(self, message: Message, name: str, error: BaseException | None) -> None:
        record = self._record(message, error)
        write = partial(self._store.park, self._run.name, name, [record])
        if await self._departures.insist(write, f"parking {message.coordinates}", message.claim):
            self._departures.settle(message, "parked")
            self._next_of(message)
        else:
            self._left(message)

    def _left(self, message: Message) -> None:
        self._departures.leave(message)
        self._next_of(message)

    def _next_of(self, message: Message) -> None:
        parked = self._schedule.parked.of(message)
        if parked is not None:
            self.go_on(parked)

    def _record(self, message: Message, error: BaseException | None) -> ParkedRecord:
        record = message.record
        named = error_of_decoding(record) if error is None else error
        return ParkedRecord(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            headers=record.headers,
            timestamp=record.timestamp,
            reason=BEHIND if error is None else storable(text_of(error)),
            error_type="" if named is None else type(named).__name__,
            message="" if named is None else storable(text_of(named)),
            attempts=message.attempts.failed,
            parked_at=datetime.fromtimestamp(self._run.clock.wall_time(), UTC),
            is_poison=error is not None,
        )

    # -- reading back ------------------------------------------------------------------------------

    async def run(self, claims: NewClaims) -> None:
        """Read the parked keys of new claims, and park records that wait for the end of older
        turns.
        """
        parked, run = self._schedule.parked, self._run
        while True:
            while new := claims.unread():  # others may be assigned during a read
                await self._read_back(new, claims)
            self.look()
            late = [run.settled] if parked.are_fed else []
            await wait_until(self._run.clock, math.inf, run.assignment, run.parking, *late)

    async def _read_back(self, new: Sequence[Claim], claims: NewClaims) -> None:
        """Read the parked keys once for all of these claims, which may be hundreds."""
        names: list[str] = []

        async def read() -> None:
            names[:] = await self._store.keys(self._run.name)

        if not await self._departures.insist(read, "reading the parked keys", *new):
            return
        scopes = {claim: self._keys.scope_name(claim.partition) for claim in new}
        parked = {
            claim: [name for name in names if name.startswith(scope)]
            for claim, scope in scopes.items()
        }
        self._known({claim: [] for claim in new if not parked[claim]}, claims)
        for claim in new:
            if parked[claim]:
                await self._read_keys(claim, parked[claim], claims)

    async def _read_keys(self, claim: Claim, names: Sequence[str], claims: NewClaims) -> None:
        """Find the keys of these names, which may require a record of each."""
        found: list[NamedKey] = []

        async def read() -> None:
            found[:] = await self._parked_of(claim, names)

        if await self._departures.insist(
            read, f"reading the parked keys of {claim.partition}", claim
        ):
            self._known({claim: found}, claims)

    def _known(self, found: Mapping[Claim, Sequence[NamedKey]], claims: NewClaims) -> None:
        """Park the keys, and allow fetching for the claims."""
        parked, going = self._schedule.parked, [each for each in found if not each.is_closing]
        for claim in going:
            parked.begin(claim)
            for key, name in found[claim]:
                parked.park(claim.lanes, key, name)
            if found[claim]:
                log_safely(
                    logger,
                    logging.WARNING,
                    _READ,
                    self._run.name,
                    len(found[claim]),
                    claim.partition,
                )
        claims.read(*going)

    async def _parked_of(self, claim: Claim, names: Sequence[str]) -> list[NamedKey]:
        scope = self._keys.scope_name(claim.partition)
        found: list[NamedKey] = []
        for name in names:
            text = name.removeprefix(scope)
            key = key_of(text)
            if type(key) in PLAIN and key_text(key) == text:
                found.append(NamedKey(key, name))
                continue
            records = await self._store.first(self._run.name, name, 1)
            found += [
                NamedKey(self._keys.named(claim.partition, name, each), name) for each in records
            ]
        return found


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
        departures: Departures,
        run: Run,
        parker: Parker,
    ) -> None:
        self._store = store
        self._schedule = schedule
        self._departures = departures
        self._run = run
        self._parker = parker
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

    # -- requests of operators ---------------------------------------------------------------------

    async def run(self, requests: UnparkRequests) -> None:
        """Unpark keys on request, one after another, looking for requests while keys are parked."""
        while True:
            await self._run.clock.sleep(LOOK_EVERY)
            try:
                names = await requests.requests(self._run.name) if self._schedule.parked else ()
                for parked in [each for each in self._schedule.parked if each.name in names]:
                    if await requests.take_request(self._run.name, parked.name):
                        done = await self._replay(parked)
                        told = (self._run.name, parked.name, done.handled)
                        log_safely(logger, logging.INFO, _REQUESTED, *told)
            except Exception as error:  # of the store, which is asked again
                log_safely(logger, logging.WARNING, _UNREAD, self._run.name, for_log(error))

    # -- the replay of one key ---------------------------------------------------------------------

    async def _replay(self, parked: ParkedKey) -> Unparked:
        if parked.is_replayed:  # another call has started the replay meanwhile
            return Unparked(0, is_done=False)
        handled = 0
        parked.replay(begins=True)
        try:
            while parked.is_going:  # a record is being written, or an older turn is not over
                await wait_until(self._run.clock, math.inf, self._run.settled)
            while records := await self._store.first(self._run.name, parked.name, PAGE):
                for record in records:
                    end = await self._handle(parked, record)
                    if not end.is_handled:
                        return Unparked(handled, is_done=False, error=end.error)
                    handled += 1
            self._schedule.release(parked)
            self._run.work.fire()
            return Unparked(handled, is_done=True)
        finally:
            parked.replay(begins=False)
            self._parker.go_on(parked)

    async def _handle(self, parked: ParkedKey, record: ParkedRecord) -> ReplayEnd:
        """Handle a record and remove it from the store; suspend until done or failed."""
        while parked in self._schedule.parked and parked.is_going:  # an event is finalised
            await wait_until(self._run.clock, math.inf, self._run.settled)
        claim = self._claim_of(parked, record)
        if claim is None:
            return ReplayEnd(is_handled=False)
        size = self._schedule.sizes.of([record])[0]
        make = self._schedule.message_type
        message = make(parked.key, size, record, claim, next(self._indices))
        end: asyncio.Future[ReplayEnd] = asyncio.get_running_loop().create_future()
        self._running[message] = Replaying(parked, record, end)
        self._schedule.replay(message)
        self._run.work.fire()
        return await end

    def _claim_of(self, parked: ParkedKey, record: ParkedRecord) -> Claim | None:
        """Return an open claim of the key's scope, preferably that of the record's partition."""
        if parked not in self._schedule.parked:
            return None
        claims = [each for each in self._schedule.parked.claims_of(parked) if not each.is_closing]
        own = TopicPartition(record.topic, record.partition)
        return min(claims, key=lambda claim: claim.partition != own, default=None)

    # -- the end of a replayed message -------------------------------------------------------------

    def finish(self, message: Message) -> None:
        """Remove a handled message from the store; its turn continues until then."""
        work, cut = self._remove(message), partial(self.leave, message)
        self._departures.start(message, work, cut, WaitReason.PARKING)

    async def _remove(self, message: Message) -> None:
        replaying = self._running[message]
        remove = partial(
            self._store.remove, self._run.name, replaying.parked.name, [replaying.record]
        )
        what = f"removing {message.coordinates} from the park store"
        if await self._departures.insist(remove, what, message.claim):
            self._run.count("unparked")
            self._departures.free(message)
            self._end(message, ReplayEnd(is_handled=True))
        else:
            self.leave(message)

    def fail(self, message: Message, error: BaseException) -> None:
        """Keep a message that is poison again in the store."""
        log_safely(
            logger, logging.ERROR, _FAILED, self._run.name, message.coordinates, for_log(error)
        )
        self._departures.free(message)
        self._end(message, ReplayEnd(is_handled=False, error=error))

    def leave(self, message: Message) -> None:
        """Keep a message in the store because its claim ends."""
        self._departures.leave(message)
        self._end(message, ReplayEnd(is_handled=False))

    def forget(self, messages: Iterable[Message]) -> None:
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
