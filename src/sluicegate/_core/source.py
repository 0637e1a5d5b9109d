"""The contract between a consumer and the source that it reads.

1. A source reports to its host the partitions that this process owns, as *claims*. A claim is one
   assignment of one partition; it ends with the assignment and is never reopened.
2. The host decides what is fetched: the source delivers only from the claims passed to `fetch`, in
   the order of their offsets, and each record of a claim once.
3. A fetch result states how far it reaches, so that a position can pass offsets without a record
   (compaction, transaction markers), also at the end of a partition.
4. A commit is one attempt for the given claims. A source omits the claims that it no longer holds,
   and checks that after its last `await`.
5. A revoke waits for the host; a loss does not. Only a revoke is followed by a commit.
6. A `TransactionalSource` can leave its positions to a `PositionStore`, which commits them together
   with the results of the records.
7. A source with `CountsLag` measures the lag itself; otherwise it is the end minus the position.
8. A claim may be as short as the lease of a few records (`shares="keys"`). Such a source begins
   claims within `fetch`, which is then also called without a claim.
9. A source with `TakesBack` stores failed and poison records itself, so that they survive the
   process.
10. A source with `ReplacesClaims` replaces a claim that has lost its position, on request.
11. A source decodes each record by itself. One that it cannot decode is delivered in its place, as
    an `UndecodableRecord`; `fetch` does not raise because of it, and the records before and after
    it are delivered as usual. The host treats it as poison, and no handler gets it.
12. A source with `KeepsAlive` is called while nothing is fetched; one with `ExtendsRecords` is
    called for the records that are held, and by `Message.in_progress`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from .logs import log_safely

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager


ReturnedAs = Literal["returned", "dead_lettered", "blocked", "parked"]
"""The action of a source for a record that was returned to it."""


class TopicPartition(NamedTuple):
    """A partition of a topic: the unit of assignment, of positions and of order.

    `topic` is the name that the source gives to its log or queue, and `partition` a number in it,
    from 0. `str()` is `topic/partition`.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Position(NamedTuple):
    """A stored position: all records before `offset`, and those in the map, are settled."""

    offset: int
    metadata: str = ""
    """The map of settled offsets beyond `offset`; empty without any."""


class SourceRecord(Protocol):
    """A record as delivered by a source. The record types of common clients implement it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> object: ...
    @property
    def value(self) -> object: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...
    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """A record created by Sluicegate: by a memory source, or read from a store."""

    topic: str
    partition: int
    offset: int
    key: object = None
    value: object = None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int = 0
    """Milliseconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecodableRecord(Record):
    """A record that its source could not decode, with its coordinates and the decoded fields.

    A field that could not be decoded is left out, or is present in its raw form if the client
    provides it: as the value, or as a header with the field's name.
    """

    error: Exception
    """Why it could not be decoded."""
    has_key: bool = True
    """Whether its key is known, so that it keeps its place in the order of its key."""


class Settled(NamedTuple):
    """The records of a claim that were settled since the previous call."""

    offsets: Sequence[int]
    """All settled offsets, ascending."""
    given_up: Collection[int] = ()
    """The offsets that were not handled: dead-lettered, parked, or given up without a letter."""


class SourceClaim(Protocol):
    """A claim, as the source sees it. Compare claims by identity."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def is_closed(self) -> bool:
        """Whether the assignment has ended; no more positions are committed for it."""
        ...

    def pass_settled(self, offset: int, least: int) -> int:
        """Return the end of the settled range that contains `offset`; otherwise `offset`.

        The range was settled by an earlier claim, and has at least `least` remaining offsets. A
        source may skip it and continue at its end, with the end as `next_offset`; the range then
        counts as skipped.
        """
        ...

    def take_settled(self) -> Settled:
        """Return the records settled since the last call.

        Only called by a source that `settles_each` record. It becomes responsible for the returned
        records: later calls do not return them again.
        """
        ...


class Fetched(NamedTuple):
    """The next records of a claim, in the order of their offsets."""

    claim: SourceClaim
    records: Sequence[SourceRecord]
    next_offset: int = 0
    """Every offset before this one has been delivered, now or earlier, has no record, or was
    skipped as settled. Then `records` may be empty. 0 gives no information beyond the records.
    """
    failed: int = 0
    """The number of failed attempts of the first record in earlier claims."""


class ClaimHost(Protocol):
    """The consumer, as its source sees it. Call it only from the loop's thread."""

    @property
    def room_bytes(self) -> int:
        """The bytes of values that the consumer has room for now, at least 1.

        A fetch whose first record is larger delivers that record alone. A source that learns sizes
        only with the records may deliver more.
        """
        ...

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        """Begin a claim for each of these partitions, none of which may have an open one; return
        the claims in the same order.
        """
        ...

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        """Stop these claims, within `within` seconds; return the positions to commit.

        The claims stay open until `ended`. Suspends until their running handlers have ended or have
        been cancelled.
        """
        ...

    def ended(self, claims: Collection[SourceClaim]) -> None:
        """End these claims, after a revoke or a loss: no more positions are committed for them."""

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        """Cancel records of a claim: a running handler is cancelled, and none begins.

        They are returned to the source by `TakesBack.give_up`, whatever their remaining attempts. One
        that is acknowledged nevertheless is settled.
        """

    def reported(self, trouble: str | None) -> None:
        """Record why the source cannot deliver at present, for operators; `None` if it can."""


StartsAt = Literal["beginning", "end", "time", "offset"]
"""Start points for a group without a stored position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCapabilities:
    """The abilities of a source, and facts that its consumer needs: declared as `capabilities` of
    its class. A source whose times depend on its arguments replaces them in its constructor.
    """

    starts: frozenset[StartsAt] = frozenset()
    """The available start points for a group without stored positions; empty: no choice."""
    batches: bool = False
    """One request to the server fetches many records."""
    lag: Literal["ends", "counts"] | None = None
    """How the lag is measured: from the ends of all partitions, or by the source (`CountsLag`)."""
    shares: Literal["partitions", "keys"] | None = None
    """What the processes of a group divide among themselves; `None`: only one process reads. With
    `keys`, a claim is the lease of a few records. Then equal keys of two claims are the same key;
    settled records are committed immediately, since later records of their keys wait for that; and
    the beginnings and ends of claims are not reported.
    """
    cooperative: bool = False
    """A rebalance does not interrupt partitions that keep their owner."""
    metadata: bool = False
    """Stores the map of settled offsets: a crash repeats only unfinished records."""
    settles_each: bool = False
    """Acknowledges each record separately, with `take_settled`, and without a position: a commit is
    due as soon as a record is settled.
    """
    extends: bool = False
    """Limits the time for which a record is held, and can extend it (`ExtendsRecords`)."""
    takes_back: bool = False
    """Stores failed records for their backoff, and poison records, itself (`TakesBack`)."""
    transactions: Literal["positions", "records"] | None = None
    """What can commit together with rows: positions, in any destination that keeps them
    (`TransactionalSource`), or records, in the source's database (`SettlesInTransaction`).
    """
    keep_alive_every: float | None = None
    """Seconds between calls of `keep_alive` (`KeepsAlive`) while nothing is fetched; `None` if none
    are needed.
    """
    revoke_within: float | None = None
    """Time limit of a revoke in seconds; a drain must be shorter. `None`: no limit."""
    extend_every: float | None = None
    """Seconds between calls of `extend` (`ExtendsRecords`) for held records; `None` if none are
    needed.
    """
    foreign_map: Callable[[int, str], list[tuple[int, int]]] | None = None
    """Reads what another program has stored with a position: the finished ranges, half open and
    ascending. It raises `ForeignMap` for text that it cannot read. `None` if there are no such
    programs.
    """


@runtime_checkable
class Source(Protocol):
    """A partitioned log of records with stored positions, read by one consumer.

    The constructor does nothing; the source is open inside `async with source.open(host)`.
    """

    @property
    def capabilities(self) -> SourceCapabilities: ...

    def open(self, host: ClaimHost) -> AbstractAsyncContextManager[object]:
        """Subscribe, and unsubscribe at exit. Claims may arrive from entry on."""
        ...

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Deliver up to `most` records of these claims, with priority for the first claims.

        Suspends until there is at least one record or a new `next_offset`. Returns `None` at the
        end of a finite source, when all records of all its partitions have been delivered. A
        cancelled call has delivered nothing.
        """
        ...

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store these positions, in one attempt; return the claims whose positions are stored.

        Raises if the attempt failed; some positions may have been stored.
        """
        ...

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """Return the offset after the last record of each claim's partition, if it is known."""
        ...


@runtime_checkable
class KeepsAlive(Protocol):
    """A source that has to be called while nothing is fetched; see `SourceCapabilities`."""

    async def keep_alive(self) -> None:
        """Remain a member of the group without fetching."""


@runtime_checkable
class ExtendsRecords(Protocol):
    """A source that limits the time for which a record may be held, and can extend it."""

    def extend(self, records: Iterable[SourceRecord]) -> None:
        """Extend the time for which these records may be held."""


class Unread(NamedTuple):
    """The unread messages of a partition from an offset on."""

    messages: int
    seconds: float
    """The age of the oldest one, in seconds; 0 without any."""


@runtime_checkable
class CountsLag(Protocol):
    """A source that counts its lag, since its offsets have gaps and do not indicate it."""

    async def lag(self, positions: Mapping[SourceClaim, int]) -> Mapping[SourceClaim, Unread]:
        """Return the unread messages from these offsets on, without ended claims.

        The count may have an upper limit. Suspends, and raises errors of the source.
        """
        ...


@runtime_checkable
class TakesBack(Protocol):
    """A source that stores records which this process cannot handle, temporarily or permanently.

    Both methods take a record of a claim; all records of the claim before the offset `settled` are
    settled. They suspend until that is stored, and then end the claim: its delivered but unsettled
    records are delivered again, in order. Both raise client errors, and may be called again
    after one. They return `None`, without effect, if the claim had ended.
    """

    @property
    def back_after(self) -> float:
        """Minimum backoff, in seconds, for which a record is returned instead of held."""
        ...

    async def put_back(
        self,
        claim: SourceClaim,
        settled: int,
        record: SourceRecord,
        *,
        error: BaseException | None,
        delay: float,
        tries: int,
    ) -> ReturnedAs | None:
        """Deliver a record again after `delay` seconds.

        `tries` is its number of failed attempts, `error` the error of the last one.
        """
        ...

    async def give_up(
        self,
        claim: SourceClaim,
        settled: int,
        record: SourceRecord,
        *,
        error: BaseException,
        tries: int,
        bury: bool,
    ) -> ReturnedAs | None:
        """Apply the source's configured action to a record that cannot be handled.

        With `bury`, make it a dead letter, regardless of the configuration.
        """
        ...


class PositionStore(Protocol):
    """Stores the positions of a source, in place of the source, together with the rows."""

    @property
    def keeps_group_offsets(self) -> bool:
        """Whether they are the group's own offsets. Otherwise the source may copy them there."""
        ...

    @property
    def copy_metadata(self) -> str:
        """The metadata of such copies; empty: that of the positions."""
        ...

    def begins_at_offsets(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Note the taken partitions without a position in this store, which begin at offsets of the
        group.

        `offsets` has the group's stored position of each of them. Called by the source after `take`
        and before it fetches. A store that must not begin there refuses the partition later, with a
        `ConfigError`. Does not suspend.
        """

    async def take(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take over these partitions from earlier owners; return their positions, if they have any.

        Called before claims begin. After that, no write of an earlier owner is applied. A partition
        without a position begins at the source's start point. Raises errors of the destination; the
        source then calls it again.
        """
        ...

    async def store(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions without rows; return the partitions that are known to be stored.

        Skips a position that a running transaction will move. Raises errors of the destination.
        """
        ...

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Release these partitions; their claims have ended."""


@runtime_checkable
class TransactionalSource(Source, Protocol):
    """A source whose positions can be kept by a `PositionStore`."""

    @property
    def group(self) -> str:
        """The consumer group that owns the positions."""
        ...

    def with_positions(self, store: PositionStore) -> Source:
        """Return an unopened source of the same records and group, with its positions in `store`.
        It delivers only committed records; raises `ConfigError` if its options request others.
        """
        ...


@runtime_checkable
class ReplacesClaims(Protocol):
    """A source that can replace a claim by a new one."""

    def replace(self, claim: SourceClaim) -> None:
        """End a claim, as after a loss, and begin another one of its partition at the stored
        position, if the partition is still assigned to this process. Does not suspend; the new
        claim begins later. No effect for a claim that has ended.
        """


class Troubles:
    """The current troubles of a source. Each change is reported to the host and logged."""

    def __init__(self, host: ClaimHost, group: str, logger: logging.Logger) -> None:
        self._host = host
        self._group = group
        self._logger = logger
        self._reasons: dict[str, str] = {}
        self._reported: str | None = None

    def has(self, part: str) -> bool:
        """Whether a part of the source has a problem."""
        return part in self._reasons

    def note(self, part: str, reason: str | None) -> None:
        """Set the problem of a part of the source; `None` clears it."""
        if reason is None:
            self._reasons.pop(part, None)
        else:
            self._reasons[part] = reason
        told = next(iter(self._reasons.values()), None)
        if told != self._reported:
            self._reported = told
            self._host.reported(told)
            level = logging.INFO if told is None else logging.WARNING
            log_safely(self._logger, level, "%s: %s", self._group, told or "delivers again")
