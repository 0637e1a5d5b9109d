"""The contract between a consumer and the source that it reads.

1. A source tells its host which partitions this process owns, as *claims*. A claim is one
   assignment of one partition; it ends with the assignment and never returns.
2. The host decides what is fetched: the source delivers only from the claims that `fetch` names,
   in the order of their offsets, and never again what it has delivered from a claim.
3. What was fetched says how far it reaches, so that a position can pass offsets without a record
   (compaction, transaction markers), also at the end of a partition.
4. A commit is one attempt for the claims that it names. A source leaves out the claims that it no
   longer holds, and checks that after its last `await`.
5. A revoke waits for the host; a loss does not. Only a revoke commits.
6. A `TransactionalSource` can leave its positions to a `PositionStore`, which commits them together
   with what was made of the records.
7. A source that `CountsLag` tells the lag itself; otherwise it is the end less the position.
8. A claim may be as short as the lease of a few records (`short_claims`). Such a source begins
   claims within `fetch`, which is called without a claim, too.
9. A source that `TakesBack` records keeps those that failed and those that cannot be handled in its
   own place, so that they survive the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager


ReturnedAs = Literal["returned", "dead_lettered", "blocked", "parked"]
"""What a source has done with a record that it took back."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Position(NamedTuple):
    """A stored position: every record before `offset` is settled, and those in the map."""

    offset: int
    metadata: str = ""
    """The offset map of settled records beyond `offset`; empty without any."""


class SourceRecord(Protocol):
    """A record as a source delivers it. The records of common clients fit as they are."""

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
    """A record that Penstock itself makes: of a memory source, or read from a store."""

    topic: str
    partition: int
    offset: int
    key: object = None
    value: object = None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int = 0
    """Milliseconds since the epoch."""


class Settled(NamedTuple):
    """The records of a claim that were settled in a stretch of time."""

    offsets: Sequence[int]
    """All of them, ascending."""
    given_up: Collection[int] = ()
    """Those of them that were not handled: with a dead letter, parked, or given up without one."""


class SourceClaim(Protocol):
    """A claim as the source sees it: an identity. Compare claims with `is`."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def is_closed(self) -> bool:
        """Whether the assignment has ended; nothing of it is committed any more."""
        ...

    def pass_settled(self, offset: int, least: int) -> int:
        """The end of the span that an earlier claim has settled and `offset` is in, if at least
        `least` offsets of it are left; otherwise `offset`.

        A source may skip the span: it continues at its end, with that as the `next_offset`. The
        span counts as skipped then.
        """
        ...

    def take_settled(self) -> Settled:
        """What was settled since the last call; only for a source that `settles_each` record.

        The caller has it from then on: a later call does not tell it again.
        """
        ...


class Fetched(NamedTuple):
    """The next records of a claim, in the order of their offsets."""

    claim: SourceClaim
    records: Sequence[SourceRecord]
    next_offset: int = 0
    """Everything before this offset has been delivered, now or earlier, has no record, or was
    passed as settled. Records may be empty then. 0 says nothing beyond the records.
    """
    failed: int = 0
    """The tries of the first record that have failed in earlier claims."""


class ClaimHost(Protocol):
    """The consumer, as its source sees it. Calls come from the loop's thread."""

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        """Begin a claim of each of these partitions; they have none. Returned in order."""
        ...

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        """Stop these claims, in at most `within` seconds; return the positions to commit.

        The claims stay open until `ended`. Suspends until their running handlers have ended, or
        have been cancelled.
        """
        ...

    def ended(self, claims: Collection[SourceClaim]) -> None:
        """End these claims, whether revoked or lost: nothing of them is committed any more."""

    def reported(self, trouble: str | None) -> None:
        """Note why the source cannot deliver now, in words for operators; `None`: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTraits:
    """What a consumer has to know of a source.

    Args:
        keep_alive_every: seconds between calls of `keep_alive` while nothing is fetched; `None`
            needs none.
        revoke_within: seconds that a revoke may take; a drain has to be shorter. `None`: any.
        extend_every: seconds between calls of `extend` for records that are held; `None` needs
            none.
        short_claims: whether a claim is the lease of a few records. Equal keys of two claims are one
            key then, settled records are committed at once, since later ones of their keys wait for
            that, and the beginnings and ends of claims are no news.
        settles_each: whether the source settles each record by itself, by `take_settled`. A commit
            is due as soon as a record is settled, and its positions have no maps.
    """

    keep_alive_every: float | None = None
    revoke_within: float | None = None
    extend_every: float | None = None
    short_claims: bool = False
    settles_each: bool = False


StartsAt = Literal["beginning", "end", "time", "offset"]
"""A place where a group can begin that has no stored position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCapabilities:
    """The abilities of a kind of source, declared as `capabilities` of its class."""

    starts: frozenset[StartsAt] = frozenset()
    """Where a group without stored positions can begin; empty: there is no choice."""
    batches: bool = False
    """One request to the server fetches many records."""
    lag: Literal["ends", "counts"] | None = None
    """It tells the lag: by the ends of all its partitions, or it `CountsLag`."""
    shares: Literal["partitions", "keys"] | None = None
    """What several processes of a group divide among themselves; `None`: one process reads alone."""
    cooperative: bool = False
    """A rebalance leaves the partitions alone that stay where they are."""
    metadata: bool = False
    """It stores the offset map, so that a crash repeats unfinished records only."""
    settles_each: bool = False
    """Each record is acknowledged by itself, without a position."""
    extends: bool = False
    """It limits the time for which a record is held, and can extend it."""
    takes_back: bool = False
    """It keeps failed records for their backoff, and poison, in its own place: it `TakesBack`."""
    transactions: Literal["positions", "records"] | None = None
    """What can commit with the rows: positions, in any destination that keeps them (a
    `TransactionalSource`), or its own settled records, in its database (`SettlesInTransaction`)."""


@runtime_checkable
class DeclaresCapabilities(Protocol):
    """A source that says what it can do."""

    @property
    def capabilities(self) -> SourceCapabilities: ...


@runtime_checkable
class Source(Protocol):
    """A partitioned log of records with stored positions, read by one consumer.

    Constructing it does nothing; it is open inside `async with source.open(host)`.
    """

    @property
    def traits(self) -> SourceTraits: ...

    def open(self, host: ClaimHost) -> AbstractAsyncContextManager[object]:
        """Subscribe, and unsubscribe at exit. Claims may arrive from the entry on."""
        ...

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Deliver up to `most` records of these claims, of the first ones first.

        Suspends until there is at least one, or a new `next_offset`. Returns `None` at the end of a source that has one,
        when all records of all its partitions have been delivered. A cancelled call has delivered
        nothing.
        """
        ...

    async def keep_alive(self) -> None:
        """Stay a member of the group without fetching."""

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store these positions, in one attempt; return the claims whose positions are stored.

        Raises if the attempt failed; some positions may have been stored then.
        """
        ...

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """The offset after the last record of each claim's partition, as far as it is known."""
        ...

    def extend(self, records: Iterable[SourceRecord]) -> None:
        """Extend the time that the source allows for these delivered records, if it limits it."""


class Unread(NamedTuple):
    """How much a partition has from an offset on."""

    messages: int
    seconds: float
    """The age of the oldest of them; 0 without any."""


@runtime_checkable
class CountsLag(Protocol):
    """A source with offsets that are far apart, so that they say nothing of the lag: it counts."""

    async def lag(self, positions: Mapping[SourceClaim, int]) -> Mapping[SourceClaim, Unread]:
        """What can be delivered from these offsets on, without the claims that have ended.

        It may count up to a limit. Suspends for the answer; raises what the source raises.
        """
        ...


@runtime_checkable
class TakesBack(Protocol):
    """A source that keeps records which this process cannot handle, now or at all.

    Both methods take a record of a claim of which everything before the offset `settled` is settled.
    They suspend until that is stored, and end the claim then: what was delivered of it and is not
    settled comes again, in order. Both raise errors of the client; they may be called again then.
    Return `None` if the claim had ended, with no effect.
    """

    @property
    def back_after(self) -> float:
        """Seconds of a backoff from which on a record is given back instead of kept."""
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
        """Deliver a record again after `delay` seconds, with `tries` failed tries, the last one with
        this error.
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
        """Do with a record that cannot be handled what the source is set to do.

        `bury`: make it a dead letter, whatever that is.
        """
        ...


class PositionStore(Protocol):
    """Keeps the positions of a source in its place, where they commit with the rows."""

    @property
    def keeps_group_offsets(self) -> bool:
        """Whether it stores them as the group's own offsets, so that the source must store none.

        Otherwise the source may store there what this one has stored, for tools that show the lag.
        """
        ...

    async def take(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Position]:
        """Take these partitions over from earlier owners, and return the positions they have.

        Called after an assignment, before claims begin. From then on nothing of an earlier owner is
        applied. A partition without a position begins where the source would begin it. Raises
        whatever the destination raises; the source calls it again then.
        """
        ...

    async def store(
        self, positions: Mapping[TopicPartition, Position]
    ) -> Collection[TopicPartition]:
        """Store positions alone; return the partitions for which that is known.

        One that a transaction is about to move is left to it. Raises the destination's error.
        """
        ...

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions: their claims have ended."""


@runtime_checkable
class TransactionalSource(Source, Protocol):
    """A source that can leave its positions to a store."""

    @property
    def group(self) -> str:
        """The consumer group, whose positions they are."""
        ...

    def with_positions(self, store: PositionStore) -> Source:
        """A source of the same records and the same group, not opened, with its positions in `store`.

        It delivers only committed records. Raises `ConfigError` if its options ask for others.
        """
        ...
