"""Kafka arguments, checked before opening: addresses, topics, start points, options of clients.
Loads no client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, cast, get_args

from .._core import addresses, checks
from .._core.addresses import Options
from .._core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from .._core.source import TopicPartition

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s,/:@]+):\d{1,5}")

COMMITTED = "read_committed"
LONGEST_HEARTBEAT = 3.0
"""Seconds; the default of Kafka's own client."""
ANSWER_WITHIN = 10.0
"""Timeout in seconds for the response to a request that a broker does not delay."""
TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""The names that Kafka allows."""
_TOPIC_RULE = "must be a topic name: 1 to 249 letters, digits, dots, underscores and hyphens"
_START_RULE = 'must be "earliest", "latest", "committed" or a datetime with a time zone'
Start = Literal["earliest", "latest", "committed"]


def seconds_of(name: str, value: object) -> float:
    """Check a duration in seconds. Raises `ConfigError`."""
    return checks.seconds(name, value, usual=checks.LONG_TIMEOUT)


def milliseconds(seconds: float) -> int:
    """Convert seconds to whole milliseconds, at least 1."""
    return max(1, round(seconds * 1000))


def bootstrap_of(value: object) -> str:
    """Check the addresses; return them separated by commas. Raises `ConfigError`."""
    rule = 'must be "host:port", several of these separated by commas, or a list of them'
    if value is None or value in ("", [], ()):
        raise checks.bad("bootstrap", value, f"{rule}; {addresses.UNSET}")
    given = cast("object", value.split(",") if isinstance(value, str) else value)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise checks.bad("bootstrap", value, rule)
    listed = cast("Sequence[object]", given)
    given_addresses = [each.strip() if isinstance(each, str) else "" for each in listed]
    if not all(_ADDRESS.fullmatch(each) for each in given_addresses):
        raise ConfigError(f"bootstrap={addresses.shown(value)}: {rule}")
    return ",".join(given_addresses)


def name_of(name: str, value: object) -> str:
    """Check the name of a group or a member. Raises `ConfigError`."""
    if not isinstance(value, str) or not value.strip():
        raise checks.bad(name, value, "must be a non-empty string")
    return value


def topic_of(name: str, value: object) -> str:
    """Check the name of a topic. Raises `ConfigError`."""
    if not isinstance(value, str) or not TOPIC.fullmatch(value):
        raise checks.bad(name, value, _TOPIC_RULE)
    return value


def options_of(client: object) -> Mapping[str, object]:
    """Check the options of a client. Raises `ConfigError`."""
    if client is None:
        return {}
    named = cast("Mapping[object, object]", client)
    if not isinstance(client, Mapping) or not all(isinstance(name, str) for name in named):
        raise ConfigError("client=...: must be a mapping of the client's options, by their names")
    return cast("Mapping[str, object]", client)


def client_options(
    given: Mapping[str, object], known: Collection[str] | None, owned: Mapping[str, str], of: str
) -> Options:
    """Return the options to pass to a client, by its names. Raises `ConfigError` for other names.

    `known` are all option names of the client; with `None` the client itself checks them.
    """
    for name in given:
        if name in owned:
            raise ConfigError(f"client={{{name!r}: ...}}: is set by Sluicegate: {owned[name]}")
        if known is not None and name not in known:
            raise ConfigError(f"client={{{name!r}: ...}}: is not an option of {of}")
    return Options(given)


class KnownTopics(Protocol):
    """A client's knowledge of topics."""

    def topics(self) -> Collection[str]:
        """Return the subscribed topics, or those that match the pattern."""
        ...

    def unknown(self, topics: Iterable[str]) -> Sequence[str]:
        """Return the topics that no broker has reported."""
        ...


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a source: names, or a pattern."""

    names: tuple[str, ...]
    pattern: str | None = None

    @classmethod
    def of(cls, names: Sequence[object], pattern: object) -> Topics:
        """Check the arguments. Raises `ConfigError`."""
        if bool(names) == (pattern is not None):
            raise checks.bad("topics", names, "give the names of topics, or pattern=")
        if pattern is None:
            return cls(tuple(topic_of("topics", name) for name in names))
        if not isinstance(pattern, str):
            raise checks.bad("pattern", pattern, "must be a regular expression, as a string")
        try:
            re.compile(pattern)
        except re.error as error:
            rule = f"must be a regular expression, as a string ({error})"
            raise checks.bad("pattern", pattern, rule) from None
        return cls((), pattern)

    def missing(self, known: KnownTopics) -> str | None:
        """Return which topics cannot be read because they do not exist, as text for operators."""
        if self.pattern is not None:
            return None if known.topics() else f"no topic matches {self.pattern!r}"
        unknown = known.unknown(self.names)
        return no_topic(unknown) if unknown else None

    def __str__(self) -> str:
        return ", ".join(map(repr, self.names)) or f"pattern={self.pattern!r}"


def no_topic(topics: Iterable[str]) -> str:
    """Say that topics are missing or hidden."""
    named = ", ".join(map(repr, topics))
    return f"the topic {named} does not exist, or may not be described"


class Offsets(Protocol):
    """A client that reads the offsets of partitions. Raises its own errors."""

    async def beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first retained offsets."""
        ...

    async def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets after the last readable records."""
        ...

    async def offsets_at(
        self, partitions: Collection[TopicPartition], milliseconds: int
    ) -> dict[TopicPartition, int]:
        """Return the first offsets at or after this time, if there are any."""
        ...


@dataclass(frozen=True, slots=True)
class StartPoint:
    """The beginning, the end, a time, or only stored positions."""

    kind: Start | Literal["time"]
    time: datetime | None = None

    @classmethod
    def of(cls, start: object) -> StartPoint:
        """Check the argument. Raises `ConfigError`."""
        if isinstance(start, datetime):
            if start.utcoffset() is None:
                raise checks.bad("start", start, _START_RULE)
            return cls("time", start)
        for kind in get_args(Start):
            if start == kind:
                return cls(kind)
        raise checks.bad("start", start, _START_RULE)

    @property
    def moves(self) -> bool:
        """Whether its offset changes over time even if nothing is read."""
        return self.kind == "latest"

    async def offsets(
        self, client: Offsets, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offsets to deliver, for partitions that have one.

        Raises client errors.
        """
        if not partitions or self.kind == "committed":
            return {}
        if self.kind == "earliest":
            return await client.beginnings(partitions)
        ends = await client.ends(partitions)
        if self.time is None:
            return ends
        return ends | await client.offsets_at(partitions, round(self.time.timestamp() * 1000))

    def __str__(self) -> str:
        return repr(self.kind) if self.time is None else self.time.isoformat()
