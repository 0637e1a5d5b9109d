"""What the members of a group have in common, whichever client reads: the source, where its claims
begin, the history of their partitions, and the messages for operators. Loads no client.

1. A claim begins at its stored position, or at the start point. A moving start point (the end) is
   stored before its claim begins, so that records after it are delivered even after a crash before
   the first commit.
2. A partition that was created while the source was open begins at its beginning instead.
3. The disappearance of a stored position is reported as an error.
4. If the next offset is no longer retained, reading continues at the start point, and the gap is
   reported. If it is beyond the end of the log, the log was replaced, and so is the claim.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from .._core.errors import ClosedError
from .._core.logs import log_safely
from .._core.source import Position
from .access import ClientOptions
from .arguments import StartPoint, Topics, name_of, no_topic, seconds_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from .._core.source import Fetched, SourceClaim, TopicPartition
    from .arguments import Offsets

logger = logging.getLogger("sluicegate.kafka")

RETRY_FROM, RETRY_TO = 0.1, 5.0
"""The shortest and the longest delay in seconds between attempts to read stored positions."""
LOOK_EVERY = 0.5
"""Seconds between health checks of a session."""
RECONNECT = 1.0
"""Seconds between attempts to connect."""
LEAST_SHARE = 50
"""The smallest share of a claim in a fetch, in records; smaller reads cost more than they save."""
LONG_SPAN = 10_000
"""Length in offsets from which a settled span is skipped. Prefetched records are discarded then."""

NO_POSITION = "no position is stored for %s, and start='committed' requires one"
LAST_FAILED = "%s: the commit of a revoke failed (%s); its uncommitted messages run again elsewhere"
SESSION_FAILED = "%s: a session has failed (%s); a new one follows"
_FORGOTTEN = (
    "%s: %s: its stored position, %d when it was last known, has been deleted, perhaps with its "
    "topic: records after it may be lost; it begins at %d (start=%s)"
)
_GONE = (
    "%s: %s: the next offset, %d, is no longer retained (%d is the first that is): the offsets up "
    "to %d were never delivered; reading continues at %d (start=%s)"
)
_OTHER_LOG = "%s: %s ends at %d, before the next offset, %d: reading begins again at %d (start=%s)"
_TRUNCATED = (
    "%s: %s was recreated, or truncated before the next offset, and ends at %d (next: %d): reading "
    "begins again at %d (start=%s)"
)
TOPIC_DENIED = 29
LOGIN_REFUSED = {33, 34, 58, -169, -181}
"""Error codes of a refused login or certificate; negative ones are librdkafka's own."""
UNREACHABLE = {7, 8, 15, -180, -185, -187, -193, -195}
NO_TOPIC = {3, 100, -188, -190}
FENCED_INSTANCE = 82
_FENCED = {FENCED_INSTANCE, 111, -144}
MEMORY = 60.0
"""Seconds for which a loss is counted."""
MANY = 3
"""Number of losses that are not a coincidence."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GroupOptions(ClientOptions):
    """Options of a group member on either client. Times are in seconds."""

    group: str
    instance: str | None
    session_timeout: float
    rebalance_timeout: float
    commit_timeout: float
    client: Mapping[str, Any]

    @staticmethod
    def checked(
        *, group: object, instance: object, client: Mapping[str, object], **seconds: object
    ) -> dict[str, Any]:
        """Check the arguments that both clients have. Raises `ConfigError`."""
        return {
            "group": name_of("group", group),
            "instance": None if instance is None else name_of("instance", instance),
            "client": client,
            **{name: seconds_of(name, value) for name, value in seconds.items()},
        }

    @property
    def revoke_within(self) -> float:
        """Time limit of a drain in a rebalance, in seconds; leaves time for the commit after it."""
        return self.rebalance_timeout - self.commit_timeout

    def __repr__(self) -> str:
        return f"{type(self).__name__}(bootstrap={self.bootstrap!r}, group={self.group!r})"


class OpenGroup(Protocol):
    """An open source."""

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Deliver records of these claims."""
        ...

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """Return the ends of the claims' logs."""
        ...


S = TypeVar("S", bound=OpenGroup)


class GroupSource(Generic[S]):
    """Kafka topics, read as a member of a consumer group."""

    def __init__(
        self, topics: Sequence[object], pattern: object, start: object, bootstrap: str, group: str
    ) -> None:
        self._topics = Topics.of(topics, pattern)
        self._start = StartPoint.of(start)
        self._bootstrap = bootstrap
        self._group = group
        self._sessions: S | None = None

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Deliver records of these claims. Never ends, and raises no Kafka error."""
        return await self._open().fetch(claims, most)

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """Return the offsets after the last records: current ones, or the last known ones."""
        return await self._open().ends(claims)

    def _open(self) -> S:
        if self._sessions is None:
            raise self._closed_error()
        return self._sessions

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self!r} is not open")

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._topics}, bootstrap={self._bootstrap!r}, "
            f"group={self._group!r})"
        )


class Beginnings:
    """Determines where claims begin."""

    def __init__(
        self,
        client: Offsets,
        start: StartPoint,
        history: History,
        *,
        group: str,
    ) -> None:
        self._client = client
        self._start = start
        self._history = history
        self._group = group

    async def of(
        self,
        partitions: Collection[TopicPartition],
        stored: Mapping[TopicPartition, Position],
        store: Callable[[Mapping[TopicPartition, Position]], Awaitable[Collection[TopicPartition]]],
    ) -> dict[TopicPartition, Position]:
        """Return the start positions of partitions that have one.

        Raises errors of the client and of `store`, which stores positions and returns the
        partitions that are known to be stored.
        """
        found = await self._start_positions([each for each in partitions if each not in stored])
        forgotten = self._history.forgotten(found)
        known = dict(stored)
        if self._start.moves:
            known |= {each: found[each] for each in await store(found)}
        for each, was in forgotten.items():
            told = (each, was, found[each].offset, self._start)
            log_safely(logger, logging.ERROR, _FORGOTTEN, self._group, *told)
        self._history.restart(forgotten)
        starts = {**stored, **found}
        self._history.store(known)
        return {each: starts[each] for each in partitions if each in starts}

    async def _start_positions(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Return the start of partitions without a stored position."""
        appeared = self._start.moves and [
            each for each in partitions if self._history.has_appeared(each)
        ]
        offsets = await self._client.beginnings(appeared) if appeared else {}
        rest = [each for each in partitions if each not in offsets]
        offsets |= await self._start.offsets(self._client, rest)
        return {each: Position(offset) for each, offset in offsets.items()}


class Retained(NamedTuple):
    """The offsets that a partition retains, and its start point."""

    first: int
    end: int
    start: int | None
    """`None` if only stored positions are start points."""
    is_truncated: bool = False
    """Whether the log was truncated before the offset in question."""

    @classmethod
    async def of(cls, client: Offsets, start: StartPoint, partition: TopicPartition) -> Retained:
        """Request them. Raises client errors, and `LookupError` without a response."""
        return cls(
            (await client.beginnings([partition]))[partition],
            (await client.ends([partition]))[partition],
            (await start.offsets(client, [partition])).get(partition),
        )

    def has(self, offset: int) -> bool:
        """Return whether reading can continue at an offset."""
        return self.first <= offset <= self.end and not self.is_truncated

    def why_not(self, partition: TopicPartition, offset: int) -> str:
        """Say that the partition is not read, as there is no start point."""
        return (
            f"the next offset of {partition}, {offset}, is not retained ({self.first} to {self.end} "
            "are), and start='committed'"
        )

    def relocate(
        self, group: str, partition: TopicPartition, offset: int, start: StartPoint
    ) -> int:
        """Report that an offset is out of range; return the one at which reading continues."""
        assert self.start is not None
        to = max(self.first, self.start)
        if self.is_other_log(offset):
            named = (group, partition, self.end, offset, to, start)
            told = _TRUNCATED if offset <= self.end else _OTHER_LOG
            log_safely(logger, logging.ERROR, told, *named)
        else:
            lost = (group, partition, offset, self.first, to - 1, to, start)
            log_safely(logger, logging.ERROR, _GONE, *lost)
        return to

    def is_other_log(self, offset: int) -> bool:
        """Return whether the log was replaced since this offset was the next one."""
        return offset > self.end or self.is_truncated


class History:
    """The partitions of the first assignment, the last stored positions, the ids of topics, and recent
    losses.
    """

    def __init__(self) -> None:
        self._first: frozenset[TopicPartition] | None = None
        self._stored: dict[TopicPartition, int] = {}
        self._losses: deque[float] = deque(maxlen=MANY)
        self._ids: dict[str, str] = {}
        self._restarted: set[TopicPartition] = set()

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Record the partitions of the topics at the first assignment; later calls do nothing."""
        if self._first is None:
            self._first = frozenset(partitions)

    def has_appeared(self, partition: TopicPartition) -> bool:
        """Return whether a partition is newer than the first assignment."""
        return self._first is not None and partition not in self._first

    def store(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Record stored positions."""
        self._stored |= {partition: at.offset for partition, at in positions.items()}

    def forgotten(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return, of partitions without a stored position, the last known ones."""
        return {each: self._stored[each] for each in partitions if each in self._stored}

    def restart(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that these partitions begin again, since their logs or positions have changed."""
        self._restarted.update(partitions)

    def recreated(
        self, ids: Mapping[str, str], partitions: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Record the ids of topics; return the partitions of topics with changed ids, except those
        that have begun again since the last call.
        """
        changed = {topic for topic, each in ids.items() if self._ids.get(topic, each) != each}
        restarted, self._restarted = self._restarted, set()
        self._ids |= ids
        return [each for each in partitions if each.topic in changed and each not in restarted]

    def lose(self, now: float) -> None:
        """Record that all partitions were lost, without a revoke."""
        self._losses.append(now)

    def loses_often(self, now: float) -> bool:
        """Return whether there have been many recent losses."""
        return len(self._losses) == MANY and now - self._losses[0] < MEMORY


def reason(
    code: int, options: GroupOptions, *, name: str, told: str, topics: Iterable[str] = ()
) -> str:
    """Return why nothing can be delivered, by an error code of Kafka or librdkafka, as text for
    operators; `told` for other codes.
    """
    if code == TOPIC_DENIED:
        return no_right_to_topics(topics)
    if code in LOGIN_REFUSED:
        return f"{options.bootstrap} has refused the login ({name})"
    if code in NO_TOPIC:
        missing = f"a partition does not exist, or may not be described: {told}"
        return no_topic(topics) if topics else missing
    if code in UNREACHABLE:
        return unreachable(options.bootstrap)
    if code in _FENCED and options.instance is not None:
        return f"the group has refused this member: {_same_instance(options.instance)}"
    texts = {
        17: f"the broker does not allow a topic's name: {told}",
        23: f"the group {options.group!r} has members with another protocol or assignor; use another "
        "group, or stop them first",
        26: f"the broker does not allow session_timeout={options.session_timeout:g}; see its "
        "group.min.session.timeout.ms and group.max.session.timeout.ms",
        30: f"not authorized to use the group {options.group!r}; it needs READ",
    }
    return texts.get(code, told)


def unreachable(bootstrap: str) -> str:
    """Report that no broker responds."""
    return f"no broker can be reached at {bootstrap}"


def no_right_to_topics(topics: Iterable[str]) -> str:
    """Say that the user may not read topics."""
    named = ", ".join(map(repr, sorted(topics)))
    told = f"the topic {named}" if named else "a topic"
    return f"not authorized to read {told}; it needs READ and DESCRIBE"


def _same_instance(instance: str) -> str:
    return f"does another process use instance={instance!r}?"


def lost_often(instance: str | None, seconds: float) -> str:
    """Say that the broker removes this member repeatedly."""
    why = (
        f"is the event loop blocked for more than {seconds:g} s at a time?"
        if instance is None
        else _same_instance(instance)
    )
    return f"the partitions have been lost repeatedly: {why}"
