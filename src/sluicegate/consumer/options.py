"""The options of consumers and pipes that are used together, as values."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from .._core import checks
from .._core.keywords import known_arguments
from .._core.park_store import ParkStore
from .._core.stacking import as_sink
from .failures.poison import STRATEGIES
from .lanes.keys import KEYLESS, SCOPES

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from .._core.sink import SinkLike
    from .._core.source import SourceRecord
    from .failures.poison import PoisonStrategy
    from .lanes.keys import Keyless, KeyScope

OF_RECORD = "must be a function of a record"


@known_arguments()
@dataclass(frozen=True, slots=True)
class InFlight:
    """Limits on the unsettled messages of a consumer or a pipe: queued, running, in a batch,
    backing off or blocked. At a limit, nothing is fetched. Raises `ConfigError` for a bad argument.

    A number is accepted in its place: `Consumer(source, in_flight=500)` is
    `Consumer(source, in_flight=InFlight(500))`.

    Examples:
        >>> from sluicegate import Consumer
        >>> from sluicegate.consumer import InFlight, MemoryLog, MemorySource
        >>> limits = InFlight(200, bytes=8 << 20, per_key=20)
        >>> consumer = Consumer(MemorySource(MemoryLog()), in_flight=limits)
    """

    messages: int | None = None
    """The maximum number of messages. Default: 1,000 in a consumer; in a pipe, the maximum number
    of items that its batcher holds (`Limits.max_pending_items`); in a transactional pipe 10,000, or
    4 full transactions if that is more.
    """
    _: KW_ONLY
    bytes: int = 64 << 20
    """The maximum size of their values together. One larger record is accepted alone."""
    per_key: int | None = None
    """The maximum number of messages of a key that wait in its lane; default: no limit. Further
    messages of the key are held back. They still count in `messages`, and their partition is
    fetched last. No room is reserved for other keys: a window full of one key stops them all. Only
    in a consumer.
    """
    fetch_max: int | None = None
    """The maximum number of records of one fetch. Default: 500; in a transactional pipe 1,000."""
    size_of: Callable[[SourceRecord], int] | None = None
    """A function from a record to its size in bytes; default: the length of its value."""

    def __post_init__(self) -> None:
        checks.optional_count("messages", self.messages)
        checks.count("bytes", self.bytes)
        checks.optional_count("per_key", self.per_key)
        checks.optional_count("fetch_max", self.fetch_max)
        checks.optional_function("size_of", self.size_of, OF_RECORD)


@known_arguments()
@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """When positions are stored: after a time or a number of messages, whichever is first. Raises
    `ConfigError` for a bad argument.

    Examples:
        >>> from sluicegate import Consumer
        >>> from sluicegate.consumer import Commits, MemoryLog, MemorySource
        >>> consumer = Consumer(MemorySource(MemoryLog()), commits=Commits(every=5.0, after=1000))
    """

    every: float | timedelta = 1.0
    """Seconds between commits. In a transactional pipe, the longest wait of a transaction's first
    record for more records.
    """
    after: int | None = None
    """The number of settled messages after which positions are stored early. Default: 10,000. In a
    transactional pipe, the maximum number of records in a transaction; default: 1,000.
    """
    bytes: int | None = None
    """Maximum number of bytes of records in a transaction; a larger record is committed alone.
    Default: 16 MiB. Only in a transactional pipe.
    """

    def __post_init__(self) -> None:
        every = checks.seconds("every", self.every, usual=checks.LONG_TIMEOUT)
        object.__setattr__(self, "every", every)
        checks.optional_count("after", self.after)
        checks.optional_count("bytes", self.bytes)


@known_arguments()
@dataclass(frozen=True, slots=True)
class Poison:
    """The treatment of messages that cannot be handled. Raises `ConfigError` for a bad argument.

    A strategy that needs nothing else is accepted in its place, such as `poison="exit"`.

    Examples:
        >>> from sluicegate import Consumer
        >>> from sluicegate.consumer import MemoryLog, MemorySource, Poison
        >>> from sluicegate.sinks import MemorySink
        >>> poison = Poison("skip", dead_letters=MemorySink(), max_dead_letter_ratio=0.1)
        >>> consumer = Consumer(MemorySource(MemoryLog()), poison=poison)
        >>> Poison(dead_letters=MemorySink()).strategy
        'block_and_dead_letter'
    """

    strategy: PoisonStrategy | None = None
    """`skip`: such a message goes to the dead letters, if there are any, and its key continues;
    `block`: it stays, and its key waits for `unblock`; `block_and_dead_letter`: both; `park_key`:
    it and later messages of its key go to the park store, until `unpark`; `exit`: the run ends and
    raises the error. Default: `park_key` with a park store, else `block_and_dead_letter` with dead
    letters, else `block`.
    """
    _: KW_ONLY
    dead_letters: SinkLike[Any] | None = None
    """The sink, or stack of sinks, of dead letters. A letter is written before the position passes
    its message.
    """
    parked: ParkStore | None = None
    """The park store. It needs a `name` of the consumer."""
    max_dead_letter_ratio: float | None = None
    """Stop if more than this fraction of a partition's recent messages became dead letters."""
    max_consecutive_dead_letters: int | None = None
    """Stop after this number of dead letters in a row in a partition."""

    def __post_init__(self) -> None:
        letters = self.dead_letters
        if letters is not None:
            object.__setattr__(self, "dead_letters", as_sink(letters, "dead_letters"))
        if self.parked is not None and not isinstance(cast("object", self.parked), ParkStore):
            raise checks.bad("parked", self.parked, "must be a store of parked messages")
        object.__setattr__(self, "strategy", self._checked_strategy())
        checks.optional_share("max_dead_letter_ratio", self.max_dead_letter_ratio)
        checks.optional_count("max_consecutive_dead_letters", self.max_consecutive_dead_letters)

    def _checked_strategy(self) -> PoisonStrategy:
        strategy, letters, parked = self.strategy, self.dead_letters, self.parked
        if strategy is None:
            if parked is not None:
                return "park_key"
            return "block" if letters is None else "block_and_dead_letter"
        checks.choice("strategy", strategy, STRATEGIES)
        _check_stores("strategy", strategy, letters, parked)
        if parked is not None and strategy != "park_key":
            raise checks.bad("parked", parked, f"has no effect with strategy={strategy!r}")
        return strategy


def _check_stores(name: str, strategy: str, dead_letters: object, parked: object) -> None:
    """Raise `ConfigError` for a strategy without its store."""
    if strategy == "park_key" and parked is None:
        raise checks.bad(name, strategy, "needs Poison(parked=...), the store of parked messages")
    if strategy == "block_and_dead_letter" and dead_letters is None:
        rule = "needs Poison(dead_letters=...), the sink of dead letters"
        raise checks.bad(name, strategy, rule)


@known_arguments()
@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of records that are handled in order. Raises `ConfigError` for a bad argument.

    A function is accepted in its place: `Consumer(source, key=f)` is
    `Consumer(source, key=Keys(f))`.

    Examples:
        >>> from sluicegate import Consumer
        >>> from sluicegate.consumer import Keys, MemoryLog, MemorySource
        >>> consumer = Consumer(MemorySource(MemoryLog()), key=Keys(scope="topic", keyless="parallel"))
    """

    by: Callable[[SourceRecord], object] | None = None
    """A function from a record to its key; default: the record's own key."""
    _: KW_ONLY
    scope: KeyScope = "partition"
    """Whether equal keys of two partitions are the same key: `partition` (no), `topic` (within a
    topic) or `group` (always).
    """
    keyless: Keyless = "serial"
    """`serial`: records without a key are in order among themselves; `parallel`: they are
    independent of each other.
    """

    def __post_init__(self) -> None:
        checks.optional_function("by", self.by, OF_RECORD)
        checks.choice("scope", self.scope, SCOPES)
        checks.choice("keyless", self.keyless, KEYLESS)


def as_in_flight(in_flight: object) -> InFlight:
    """Return the option `in_flight` as a value. Raises `ConfigError`."""
    if in_flight is None:
        return InFlight()
    if isinstance(in_flight, InFlight):
        return in_flight
    if isinstance(in_flight, int):
        return InFlight(checks.count("in_flight", in_flight))
    raise checks.bad("in_flight", in_flight, "must be a number of messages, or InFlight(...)")


def pipe_limits(in_flight: object, *, messages: int, fetch_max: int | None = None) -> InFlight:
    """Return the option `in_flight` of a pipe with these defaults. Raises `ConfigError`."""
    limits = as_in_flight(in_flight)
    if limits.per_key is not None:
        rule = "has a per_key, which has no effect in a pipe"
        raise checks.bad("in_flight", limits, rule)
    return replace(
        limits,
        messages=messages if limits.messages is None else limits.messages,
        fetch_max=fetch_max if limits.fetch_max is None else limits.fetch_max,
    )


def as_commits(commits: object) -> Commits:
    """Return the option `commits` as a value. Raises `ConfigError`."""
    if commits is None:
        return Commits()
    if isinstance(commits, Commits):
        return commits
    raise checks.bad("commits", commits, "must be Commits(every=seconds, after=messages)")


def as_poison(poison: object) -> Poison:
    """Return the option `poison` as a value. Raises `ConfigError`."""
    if poison is None:
        return Poison()
    if isinstance(poison, Poison):
        return poison
    strategy = checks.choice("poison", cast("PoisonStrategy", poison), STRATEGIES)
    _check_stores("poison", strategy, None, None)
    return Poison(strategy)


def as_keys(key: object) -> Keys:
    """Return the option `key` as a value. Raises `ConfigError`."""
    if isinstance(key, Keys):
        return key
    return Keys(checks.optional_function("key", key, f"{OF_RECORD}, or Keys(...)"))
