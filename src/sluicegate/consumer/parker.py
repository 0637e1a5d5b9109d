"""Parking: the records of a poisoned key go to the park store, in order, until `unpark`.

1. The poison record parks its key. Every later record of the key is written behind it, one after
   another, before the position may pass it. Other keys continue.
2. A failed write is repeated, and the key's other records wait behind it. A write cancelled by a
   revoke or a drain leaves its record to the next owner. The store keeps each record once, so
   writing a record again that was written but not committed has no effect.
3. Nothing is fetched for a new claim until the parked keys of its scope are read from the store: no
   record of a parked key runs, regardless of the process that parked it.
"""

from __future__ import annotations

import logging
import math
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .._core.clock import wait_until
from .._core.logs import for_log, log_safely, storable
from .._core.order.keys import PLAIN, key_of, key_text
from .._core.park_store import ParkedRecord
from .._core.text import text_of
from .stepping import error_of_decoding
from .wait_reason import WaitReason

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from .._core.park_store import ParkStore
    from .claim import Claim
    from .commons import Commons
    from .departures import Departures
    from .errands import Errands
    from .insisting import Insisting
    from .keys import KeyRules
    from .message import Message
    from .parked_keys import ParkedKey
    from .schedule import Schedule

logger = logging.getLogger("sluicegate.consumer")

_PARKED = "%s: %s parks its key until unpark() (%s)"
_READ = "%s: %d keys of %s are parked until unpark()"
BEHIND = "behind a poisoned record of its key"


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
        errands: Errands,
        commons: Commons,
        *,
        keys: KeyRules,
        departures: Departures,
        insisting: Insisting,
    ) -> None:
        self._store = store
        self._schedule = schedule
        self._errands = errands
        self._name = commons.name
        self._clock = commons.clock
        self._signals = commons.signals
        self._keys = keys
        self._departures = departures
        self._insisting = insisting

    # -- writing -----------------------------------------------------------------------------------

    def take(self, message: Message, error: BaseException) -> None:
        """Park a poison message and later ones of its key; its turn continues until it is
        parked.
        """
        log_safely(logger, logging.ERROR, _PARKED, self._name, message.coordinates, for_log(error))
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
            self._signals.parked.fire()

    def go_on(self, parked: ParkedKey) -> None:
        """Begin to write the next record of a key, or mark the key if one of its turns is running,
        such as that of an event being finalised.
        """
        message = parked.next() if parked in self._schedule.parked else None
        if message is not None:
            self._start(message, parked.name, None)
        elif self._schedule.parked.feed(parked):
            self._signals.parked.fire()

    def _start(self, message: Message, name: str, error: BaseException | None) -> None:
        self._errands.start(
            message,
            self._park(message, name, error),
            partial(self._left, message),
            WaitReason.PARKING,
        )

    async def _park(self, message: Message, name: str, error: BaseException | None) -> None:
        record = self._record(message, error)
        write = partial(self._store.park, self._name, name, [record])
        if await self._insisting.on(write, f"parking {message.coordinates}", message.claim):
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
            parked_at=datetime.fromtimestamp(self._clock.wall_time(), UTC),
            is_poison=error is not None,
        )

    # -- reading back ------------------------------------------------------------------------------

    async def run(self, claims: NewClaims) -> None:
        """Read the parked keys of new claims, and park records that wait for the end of older
        turns.
        """
        parked, signals = self._schedule.parked, self._signals
        while True:
            while new := claims.unread():  # others may be assigned during a read
                await self._read_back(new, claims)
            self.look()
            late = [signals.settled] if parked.are_fed else []
            await wait_until(self._clock, math.inf, signals.claims, signals.parked, *late)

    async def _read_back(self, new: Sequence[Claim], claims: NewClaims) -> None:
        """Read the parked keys once for all of these claims, which may be hundreds."""
        names: list[str] = []

        async def read() -> None:
            names[:] = await self._store.keys(self._name)

        if not await self._insisting.on(read, "reading the parked keys", *new):
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

        if await self._insisting.on(read, f"reading the parked keys of {claim.partition}", claim):
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
                    logger, logging.WARNING, _READ, self._name, len(found[claim]), claim.partition
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
            records = await self._store.first(self._name, name, 1)
            found += [
                NamedKey(self._keys.named(claim.partition, name, each), name) for each in records
            ]
        return found
