"""What the members of a group have in common, whichever client reads: where claims begin, the
history of their partitions, and the messages for operators. Loads no client.

1. A claim begins at its stored position, or at the start point. A moving start point (the end) is
   stored before its claim begins, so that records after it are delivered even after a crash before
   the first commit.
2. A partition that was created while the source was open begins at its beginning instead.
3. The disappearance of a stored position is reported as an error.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from .._core.say import say
from .._core.source import Position

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from .._core.source import TopicPartition
    from .arguments import Offsets, StartPoint

_FORGOTTEN = (
    "%s: %s: its stored position, %d when it was last known, has been deleted, perhaps with its "
    "topic: records after it may be lost; it begins at %d (start=%s)"
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
        logger: logging.Logger,
    ) -> None:
        self._client = client
        self._start = start
        self._history = history
        self._group = group
        self._logger = logger

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
        found = await self._begun([each for each in partitions if each not in stored])
        forgotten = self._history.forgotten(found)
        known = dict(stored)
        if self._start.moves:
            known |= {each: found[each] for each in await store(found)}
        for each, was in forgotten.items():
            told = (each, was, found[each].offset, self._start)
            say(self._logger, logging.ERROR, _FORGOTTEN, self._group, *told)
        starts = {**stored, **found}
        self._history.store(known)
        return {each: starts[each] for each in partitions if each in starts}

    async def _begun(
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


MEMORY = 60.0
"""Seconds for which a loss is counted."""
MANY = 3
"""Number of losses that are not a coincidence."""


class History:
    """The partitions of the first assignment, the last stored positions, and recent losses."""

    def __init__(self) -> None:
        self._first: frozenset[TopicPartition] | None = None
        self._stored: dict[TopicPartition, int] = {}
        self._losses: deque[float] = deque(maxlen=MANY)

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

    def lose(self, now: float) -> None:
        """Record that all partitions were lost, without a revoke."""
        self._losses.append(now)

    def loses_often(self, now: float) -> bool:
        """Return whether there have been many recent losses."""
        return len(self._losses) == MANY and now - self._losses[0] < MEMORY


def unreachable(bootstrap: str) -> str:
    """Say that no broker answers."""
    return f"no broker can be reached at {bootstrap}"


def refused_login(bootstrap: str, how: str) -> str:
    """Say that a broker does not accept the user, password or certificate."""
    return f"{bootstrap} has refused the login ({how})"


def no_right_to_topics(topics: Iterable[str]) -> str:
    """Say that the user may not read topics."""
    named = ", ".join(map(repr, sorted(topics)))
    told = f"the topic {named}" if named else "a topic"
    return f"not authorized to read {told}; it needs READ and DESCRIBE"


def no_right_to_group(group: str) -> str:
    """Say that the user may not use the group."""
    return f"not authorized to use the group {group!r}; it needs READ"


def other_protocol(group: str) -> str:
    """Say that the group's members use different protocols."""
    return (
        f"the group {group!r} has members with another protocol or assignor; "
        "use another group, or stop them first"
    )


def bad_session_timeout(seconds: float) -> str:
    """Say that the broker does not allow this session timeout."""
    return (
        f"the broker does not allow session_timeout={seconds:g}; see its "
        "group.min.session.timeout.ms and group.max.session.timeout.ms"
    )


def bad_topic_name(told: str) -> str:
    """Say that the broker does not accept a topic name."""
    return f"the broker does not allow a topic's name: {told}"


def no_partition(told: str) -> str:
    """Say that a partition is missing or hidden."""
    return f"a partition does not exist, or may not be described: {told}"


def same_instance(instance: str) -> str:
    """Return the probable cause of a fenced member, as a question."""
    return f"does another process use instance={instance!r}?"


def refused_instance(instance: str) -> str:
    """Say that a static member is fenced."""
    return f"the group has refused this member: {same_instance(instance)}"


def lost_often(instance: str | None, seconds: float) -> str:
    """Say that the broker removes this member repeatedly."""
    why = (
        f"is the event loop blocked for more than {seconds:g} s at a time?"
        if instance is None
        else same_instance(instance)
    )
    return f"the partitions have been lost repeatedly: {why}"
