"""The checked arguments of a consumer. A bad argument is refused before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from .._core import checks
from .._core.checks import in_seconds
from .._core.observer import checked_consumer_observers
from .._core.retry_policy import Backoff, RetryPolicy, checked_policy
from .._core.source import ExtendsRecords, KeepsAlive, Source, TakesBack
from .handling.steps import checked_steps
from .lanes.batches import ON_MISMATCH, BatchLimits
from .lanes.keys import ORDERINGS
from .options import Commits, InFlight, Keys, Poison, as_commits, as_in_flight, as_keys, as_poison

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

    from .._core.clock import Clock
    from .._core.observer import ConsumerObserver
    from .._core.park_store import ParkStore
    from .._core.source import SourceRecord
    from .failures.poison import PoisonStrategy
    from .handling.steps import Step
    from .lanes.batches import OnMismatch
    from .lanes.keys import Ordering


OnNak = Literal["block", "redeliver"]
UNNAMED = "consumer"
ON_NAK: tuple[OnNak, ...] = ("block", "redeliver")

_LEFT = "is decided by this source, which keeps unhandled records itself; configure it there"


class ConsumerOptions(TypedDict, total=False):
    """The keywords of `Consumer`, documented there."""

    name: str
    concurrency: int
    in_flight: int | InFlight | None
    ordering: Ordering
    key: Callable[[SourceRecord], object] | Keys | None
    on_nak: OnNak
    retry: RetryPolicy | None
    poison: PoisonStrategy | Poison | None
    timeout: float | timedelta | None
    budget: float | timedelta | None
    drain: float | timedelta
    commits: Commits | None
    stall_after: float | timedelta | None
    steps: Iterable[Step]
    observers: Iterable[ConsumerObserver]
    clock: Clock | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The checked arguments of a consumer, one field each."""

    name: str
    concurrency: int
    in_flight: InFlight
    """With all defaults filled in."""
    ordering: Ordering
    key: Keys
    on_nak: OnNak
    retry: RetryPolicy
    poison: Poison
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
    in_flight: int | InFlight | None = None,
    ordering: Ordering = "key",
    key: Callable[[SourceRecord], object] | Keys | None = None,
    on_nak: OnNak = "block",
    retry: RetryPolicy | None = None,
    poison: PoisonStrategy | Poison | None = None,
    timeout: float | timedelta | None = None,
    budget: float | timedelta | None = None,
    drain: float | timedelta = 5.0,
    commits: Commits | None = None,
    stall_after: float | timedelta | None = 60.0,
    steps: Iterable[Step] = (),
    observers: Iterable[ConsumerObserver] = (),
    clock: Clock | None = None,
) -> ConsumerSettings:
    """Check the arguments of a consumer. Raises `ConfigError`."""
    _check_source(source)
    if isinstance(source, TakesBack):
        check_left_to_source(poison)
        if on_nak != "block":
            raise checks.bad("on_nak", on_nak, _LEFT)
    treatment = as_poison(poison)
    _check_parked(treatment.parked, name)
    times = as_commits(commits)
    if times.bytes is not None:
        rule = "has no effect here: only flow.transaction limits the bytes of a commit"
        raise checks.bad("commits", times, rule)
    return ConsumerSettings(
        name=checks.text("name", name),
        concurrency=checks.count("concurrency", concurrency),
        in_flight=_in_flight(in_flight),
        ordering=checks.choice("ordering", ordering, ORDERINGS),
        key=_keys(key, ordering),
        on_nak=checks.choice("on_nak", on_nak, ON_NAK),
        retry=_retry(retry),
        poison=treatment,
        timeout=checks.optional_seconds("timeout", timeout, usual=checks.LONG_TIMEOUT),
        budget=checks.optional_seconds("budget", budget, usual=checks.LONG_PERIOD),
        drain=_drain(drain, source),
        commit_every=in_seconds(times.every),
        commit_after=10_000 if times.after is None else times.after,
        stall_after=checks.optional_seconds("stall_after", stall_after, usual=checks.LONG_PERIOD),
        steps=checked_steps(steps),
        observers=checked_consumer_observers(observers),
        clock=checks.checked_clock(clock),
    )


def _in_flight(in_flight: object) -> InFlight:
    limits = as_in_flight(in_flight)
    return replace(
        limits,
        messages=1000 if limits.messages is None else limits.messages,
        fetch_max=500 if limits.fetch_max is None else limits.fetch_max,
    )


def _check_source(source: object) -> None:
    """Raise `ConfigError` for a value that is not a source, and state what it is instead."""
    if isinstance(source, type):
        rule = "is a class; pass an instance of it"
    elif isinstance(source, Source):
        _check_times(source)
        return
    elif callable(source):
        rule = "is a function, not a source; pass a handler to run()"
    else:
        rule = "must be a source, such as MemorySource(log)"
    raise checks.bad("source", source, rule)


def _check_times(source: Source) -> None:
    """Raise `ConfigError` for a source that asks for calls of a method that it does not have."""
    can = source.capabilities
    if can.keep_alive_every is not None and not isinstance(source, KeepsAlive):
        raise checks.bad("source", source, "has a keep_alive_every and needs keep_alive()")
    if can.extend_every is not None and not isinstance(source, ExtendsRecords):
        raise checks.bad("source", source, "has an extend_every and needs extend()")


def check_left_to_source(poison: object) -> None:
    """Raise `ConfigError` for a treatment of poison that is decided by a source which takes records
    back.
    """
    if isinstance(poison, Poison):
        if poison.dead_letters is not None:
            raise checks.bad("dead_letters", poison.dead_letters, _LEFT)
        poison = poison.strategy
    if poison is not None and poison != "exit":
        raise checks.bad("poison", poison, _LEFT)


def _check_parked(parked: ParkStore | None, name: str) -> None:
    if parked is None:
        return
    if not parked.is_durable:
        checks.warn(
            f"parked={checks.shown(parked)} loses parked messages with this process, although "
            f"their positions are passed: use it in tests only"
        )
    elif name == UNNAMED:
        raise checks.bad(
            "name", name, "must be set with Poison(parked=...), since the park store uses it"
        )


def _keys(key: object, ordering: str) -> Keys:
    if key is not None and ordering != "key":
        raise checks.bad("key", key, f"has no effect with ordering={ordering!r}")
    return as_keys(key)


def _retry(retry: object) -> RetryPolicy:
    if retry is None:
        return RetryPolicy(backoff=Backoff())
    return checked_policy(retry)


def _drain(drain: object, source: Source) -> float:
    seconds = checks.seconds("drain", drain, zero=True, usual=checks.LONG_TIMEOUT)
    most = source.capabilities.revoke_within
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
    most = cast("int", settings.in_flight.messages)
    if wait is None and most < size:  # no batch would ever be full
        rule = f"must be at most in_flight={most} of the consumer, unless there is a max_wait"
        raise checks.bad("size", size, rule)
    return limits


def _or_endless(value: float | None) -> float:
    return math.inf if value is None else value
