"""The checked arguments of a consumer. A bad argument is refused before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from .._core import checks
from .._core.observer import checked_consumer_observers
from .._core.park_store import ParkStore
from .._core.retry_policy import Backoff, RetryPolicy, checked_policy
from .._core.source import ExtendsRecords, KeepsAlive, Source, TakesBack
from .._core.stacking import as_sink
from .failures.poison import STRATEGIES
from .handling.steps import checked_steps
from .lanes.batches import ON_MISMATCH, BatchLimits
from .lanes.keys import KEYLESS, ORDERINGS, SCOPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

    from .._core.clock import Clock
    from .._core.observer import ConsumerObserver
    from .._core.sink import Sink, SinkLike
    from .._core.source import SourceRecord
    from .failures.poison import PoisonStrategy
    from .handling.steps import Step
    from .lanes.batches import OnMismatch
    from .lanes.keys import Keyless, KeyScope, Ordering


OnNak = Literal["block", "redeliver"]
UNNAMED = "consumer"
ON_NAK: tuple[OnNak, ...] = ("block", "redeliver")

_OF_RECORD = "must be a function of a record"
_LEFT = "is decided by this source, which keeps unhandled records itself; configure it there"


class ConsumerOptions(TypedDict, total=False):
    """The keywords of `Consumer`, documented there."""

    name: str
    concurrency: int
    max_in_flight: int
    max_in_flight_bytes: int
    max_per_key: int | None
    fetch_max: int
    ordering: Ordering
    key: Callable[[SourceRecord], object] | None
    key_scope: KeyScope
    keyless: Keyless
    size_of: Callable[[SourceRecord], int] | None
    on_nak: OnNak
    retry: RetryPolicy | None
    poison: PoisonStrategy | None
    dead_letters: SinkLike[Any] | None
    parked: ParkStore | None
    max_dead_letter_ratio: float | None
    max_consecutive_dead_letters: int | None
    timeout: float | timedelta | None
    budget: float | timedelta | None
    drain: float | timedelta
    commit_every: float | timedelta
    commit_after: int | None
    stall_after: float | timedelta | None
    steps: Iterable[Step]
    observers: Iterable[ConsumerObserver]
    clock: Clock | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The checked arguments of a consumer, one field each."""

    name: str
    concurrency: int
    max_in_flight: int
    max_in_flight_bytes: int
    max_per_key: int | None
    fetch_max: int
    ordering: Ordering
    key: Callable[[SourceRecord], object] | None
    key_scope: KeyScope
    keyless: Keyless
    size_of: Callable[[SourceRecord], int] | None
    on_nak: OnNak
    retry: RetryPolicy
    poison: PoisonStrategy
    dead_letters: Sink[Any] | None
    parked: ParkStore | None
    max_dead_letter_ratio: float | None
    max_consecutive_dead_letters: int | None
    timeout: float | None
    budget: float | None
    drain: float
    commit_every: float
    commit_after: int | None
    stall_after: float | None
    steps: tuple[Step, ...]
    observers: tuple[ConsumerObserver, ...]
    clock: Clock


def checked_settings(
    source: Source,
    *,
    name: str = UNNAMED,
    concurrency: int = 100,
    max_in_flight: int = 1000,
    max_in_flight_bytes: int = 64 << 20,
    max_per_key: int | None = None,
    fetch_max: int = 500,
    ordering: Ordering = "key",
    key: Callable[[SourceRecord], object] | None = None,
    key_scope: KeyScope = "partition",
    keyless: Keyless = "serial",
    size_of: Callable[[SourceRecord], int] | None = None,
    on_nak: OnNak = "block",
    retry: RetryPolicy | None = None,
    poison: PoisonStrategy | None = None,
    dead_letters: SinkLike[Any] | None = None,
    parked: ParkStore | None = None,
    max_dead_letter_ratio: float | None = None,
    max_consecutive_dead_letters: int | None = None,
    timeout: float | timedelta | None = None,
    budget: float | timedelta | None = None,
    drain: float | timedelta = 5.0,
    commit_every: float | timedelta = 1.0,
    commit_after: int | None = 10_000,
    stall_after: float | timedelta | None = 60.0,
    steps: Iterable[Step] = (),
    observers: Iterable[ConsumerObserver] = (),
    clock: Clock | None = None,
) -> ConsumerSettings:
    """Check the arguments of a consumer. Raises `ConfigError`."""
    _check_source(source)
    if isinstance(source, TakesBack):
        _check_left_to_source(poison, dead_letters, parked, on_nak)
    strategy = checked_strategy("poison", poison, dead_letters, parked)
    _check_parked(parked, name)
    return ConsumerSettings(
        name=checks.text("name", name),
        concurrency=checks.count("concurrency", concurrency),
        max_in_flight=checks.count("max_in_flight", max_in_flight),
        max_in_flight_bytes=checks.count("max_in_flight_bytes", max_in_flight_bytes),
        max_per_key=checks.optional_count("max_per_key", max_per_key),
        fetch_max=checks.count("fetch_max", fetch_max),
        ordering=checks.choice("ordering", ordering, ORDERINGS),
        key=_key(key, ordering),
        key_scope=checks.choice("key_scope", key_scope, SCOPES),
        keyless=checks.choice("keyless", keyless, KEYLESS),
        size_of=checks.optional_function("size_of", size_of, _OF_RECORD),
        on_nak=checks.choice("on_nak", on_nak, ON_NAK),
        retry=_retry(retry),
        poison=strategy,
        dead_letters=None if dead_letters is None else as_sink(dead_letters, "dead_letters"),
        parked=parked,
        max_dead_letter_ratio=checks.optional_share("max_dead_letter_ratio", max_dead_letter_ratio),
        max_consecutive_dead_letters=checks.optional_count(
            "max_consecutive_dead_letters", max_consecutive_dead_letters
        ),
        timeout=checks.optional_seconds("timeout", timeout, usual=checks.LONG_TIMEOUT),
        budget=checks.optional_seconds("budget", budget, usual=checks.LONG_PERIOD),
        drain=_drain(drain, source),
        commit_every=checks.seconds("commit_every", commit_every, usual=checks.LONG_TIMEOUT),
        commit_after=checks.optional_count("commit_after", commit_after),
        stall_after=checks.optional_seconds("stall_after", stall_after, usual=checks.LONG_PERIOD),
        steps=checked_steps(steps),
        observers=checked_consumer_observers(observers),
        clock=checks.checked_clock(clock),
    )


def _check_source(source: object) -> None:
    """Raise `ConfigError` for a value that is not a source, and state what it is instead."""
    if isinstance(source, type):
        rule = "is a class; pass an instance of it"
    elif isinstance(source, Source):
        _check_traits(source)
        return
    elif callable(source):
        rule = "is a function, not a source; pass a handler to run()"
    else:
        rule = "must be a source, such as MemorySource(log)"
    raise checks.bad("source", source, rule)


def _check_traits(source: Source) -> None:
    """Raise `ConfigError` for a source that asks for calls of a method that it does not have."""
    traits = source.traits
    if traits.keep_alive_every is not None and not isinstance(source, KeepsAlive):
        raise checks.bad("source", source, "has a keep_alive_every and needs keep_alive()")
    if traits.extend_every is not None and not isinstance(source, ExtendsRecords):
        raise checks.bad("source", source, "has an extend_every and needs extend()")


def _check_left_to_source(
    poison: object, dead_letters: object, parked: object, on_nak: object
) -> None:
    """Raise `ConfigError` for arguments that are decided by a source which takes records back."""
    check_left_to_source("poison", poison)
    for name, value, is_left in (
        ("dead_letters", dead_letters, dead_letters is None),
        ("parked", parked, parked is None),
        ("on_nak", on_nak, on_nak == "block"),
    ):
        if not is_left:
            raise checks.bad(name, value, _LEFT)


def check_left_to_source(name: str, strategy: object) -> None:
    """Raise `ConfigError` for a poison strategy that is decided by a source which takes records
    back.
    """
    if strategy is not None and strategy != "exit":
        raise checks.bad(name, strategy, _LEFT)


def checked_strategy(
    name: str, poison: object, dead_letters: object, parked: object
) -> PoisonStrategy:
    """Return the poison strategy of the argument `name`; its default depends on the stores."""
    if poison is None:
        if parked is not None:
            return "park_key"
        return "block" if dead_letters is None else "block_and_dead_letter"
    strategy = checks.choice(name, cast("PoisonStrategy", poison), STRATEGIES)
    if strategy == "park_key" and parked is None:
        raise checks.bad(name, poison, "needs parked=, the store of parked messages")
    if strategy == "block_and_dead_letter" and dead_letters is None:
        raise checks.bad(name, poison, "needs dead_letters=, the sink of dead letters")
    if parked is not None and strategy != "park_key":
        raise checks.bad("parked", parked, f"has no effect with {name}={strategy!r}")
    return strategy


def _check_parked(parked: ParkStore | None, name: str) -> None:
    if parked is None:
        return
    if not isinstance(cast("object", parked), ParkStore):
        raise checks.bad("parked", parked, "must be a store of parked messages")
    if not parked.is_durable:
        checks.warn(
            f"parked={checks.shown(parked)} loses parked messages with this process, although "
            f"their positions are passed: use it in tests only"
        )
    elif name == UNNAMED:
        raise checks.bad("name", name, "must be set with parked=, since the park store uses it")


def _key(key: object, ordering: str) -> Any:
    if key is not None and ordering != "key":
        raise checks.bad("key", key, f"has no effect with ordering={ordering!r}")
    return checks.optional_function("key", key, _OF_RECORD)


def _retry(retry: object) -> RetryPolicy:
    if retry is None:
        return RetryPolicy(backoff=Backoff())
    return checked_policy(retry)


def _drain(drain: object, source: Source) -> float:
    seconds = checks.seconds("drain", drain, zero=True, usual=checks.LONG_TIMEOUT)
    most = source.traits.revoke_within
    if most is not None and seconds >= most:
        rule = f"must be shorter than the {most:g} s that the source allows for a revoke"
        raise checks.bad("drain", drain, rule)
    return seconds


class BatchOptions(TypedDict, total=False):
    """The keywords of `Consumer.run_batch`, documented there."""

    size: int
    max_wait: float | timedelta | None
    max_bytes: int | None
    max_per_key: int | None
    on_mismatch: OnMismatch


def checked_limits(
    settings: ConsumerSettings,
    *,
    size: int = 500,
    max_wait: float | timedelta | None = 0.2,
    max_bytes: int | None = None,
    max_per_key: int | None = None,
    on_mismatch: OnMismatch = "terminate",
) -> BatchLimits:
    """Check the arguments of a consumer's `run_batch`. Raises `ConfigError`."""
    wait = checks.optional_seconds("max_wait", max_wait, zero=True, usual=checks.LONG_DELAY)
    limits = BatchLimits(
        size=checks.count("size", size),
        max_wait=_or_endless(wait),
        max_bytes=_or_endless(checks.optional_count("max_bytes", max_bytes)),
        max_per_key=_or_endless(checks.optional_count("max_per_key", max_per_key)),
        one_lane=settings.ordering == "partition",
        on_mismatch=checks.choice("on_mismatch", on_mismatch, ON_MISMATCH),
    )
    if wait is None and settings.max_in_flight < size:  # no batch would ever be full
        most = settings.max_in_flight
        rule = f"must be at most max_in_flight={most} of the consumer, unless there is a max_wait"
        raise checks.bad("size", size, rule)
    return limits


def _or_endless(value: float | None) -> float:
    return math.inf if value is None else value
