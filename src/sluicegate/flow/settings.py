"""The checked arguments of a pipe. If one is refused, nothing has been started."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from .._core import checks
from .._core.errors import ErrorClass
from .._core.source import TakesBack
from ..batcher.batcher import Batcher
from ..consumer.settings import check_left_to_source, checked_settings, checked_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

    from .._core.observer import ConsumerObserver
    from .._core.park_store import ParkStore
    from .._core.retry_policy import RetryPolicy
    from .._core.sink import SinkLike
    from .._core.source import Source, SourceRecord
    from ..batcher.setup import Setup
    from ..consumer.poison import PoisonStrategy
    from ..consumer.settings import ConsumerSettings


class PipeOptions(TypedDict, total=False):
    """The keyword arguments of `pipe`, documented there."""

    name: str
    on_rejected: PoisonStrategy | None
    retry: RetryPolicy | None
    dead_letters: SinkLike[Any] | None
    parked: ParkStore | None
    key: Callable[[SourceRecord], object] | None
    max_dead_letter_ratio: float | None
    max_consecutive_dead_letters: int | None
    max_in_flight: int | None
    max_in_flight_bytes: int
    fetch_max: int
    refill_below: float
    size_of: Callable[[SourceRecord], int] | None
    concurrency: int
    drain: float | timedelta
    commit_every: float | timedelta
    commit_after: int | None
    stall_after: float | timedelta | None
    observers: Iterable[ConsumerObserver]


class PipeSettings(NamedTuple):
    """The checked arguments of a pipe."""

    consumer: ConsumerSettings
    """The settings of its consumer parts. One worker moves the records."""
    concurrency: int
    """The most concurrent calls of an async transform."""


def checked_pipe(
    source: Source,
    batcher: Batcher[Any],
    *,
    name: str = "pipe",
    on_rejected: PoisonStrategy | None = None,
    retry: RetryPolicy | None = None,
    dead_letters: SinkLike[Any] | None = None,
    parked: ParkStore | None = None,
    key: Callable[[SourceRecord], object] | None = None,
    max_dead_letter_ratio: float | None = None,
    max_consecutive_dead_letters: int | None = None,
    max_in_flight: int | None = None,
    max_in_flight_bytes: int = 64 << 20,
    fetch_max: int = 500,
    refill_below: float = 0.75,
    size_of: Callable[[SourceRecord], int] | None = None,
    concurrency: int = 100,
    drain: float | timedelta = 5.0,
    commit_every: float | timedelta = 1.0,
    commit_after: int | None = 10_000,
    stall_after: float | timedelta | None = 60.0,
    observers: Iterable[ConsumerObserver] = (),
) -> PipeSettings:
    """Check the arguments of a pipe. Raises `ConfigError`."""
    setup = checked_batcher(batcher)
    if key is not None and parked is None:
        raise checks.bad(
            "key", key, "has no effect without parked=, which stores records by this key"
        )
    takes_back = isinstance(source, TakesBack)
    if takes_back:
        check_left_to_source("on_rejected", on_rejected)
    else:
        on_rejected = checked_strategy("on_rejected", on_rejected, dead_letters, parked)
    settings = checked_settings(
        source,
        name=name,
        poison=on_rejected,
        retry=retry,
        dead_letters=dead_letters,
        parked=parked,
        key=key,
        max_dead_letter_ratio=max_dead_letter_ratio,
        max_consecutive_dead_letters=max_consecutive_dead_letters,
        max_in_flight=setup.limits.ledger_items if max_in_flight is None else max_in_flight,
        max_in_flight_bytes=max_in_flight_bytes,
        fetch_max=fetch_max,
        refill_below=refill_below,
        size_of=size_of,
        concurrency=1,
        drain=drain,
        commit_every=commit_every,
        commit_after=commit_after,
        stall_after=stall_after,
        observers=observers,
        ordering="unordered" if parked is None else "key",
        clock=setup.clock,
    )
    if settings.poison == "block" and not takes_back:
        policy = replace(settings.retry, final=settings.retry.final - {ErrorClass.PERMANENT})
        settings = replace(settings, retry=policy)
    return PipeSettings(settings, checks.count("concurrency", concurrency))


def checked_batcher(batcher: object) -> Setup[Any]:
    """Check that a pipe can write through this batcher. Raises `ConfigError`."""
    if not isinstance(batcher, Batcher):
        raise checks.bad("batcher", batcher, "must be a Batcher(sink, ...)")
    setup = cast("Batcher[Any]", batcher).setup
    if setup.overflow != "block":
        rule = "must be 'block' in a pipe: a row that is dropped or refused would be lost"
        raise checks.bad("overflow", setup.overflow, rule)
    if setup.last_resort is not None:
        rule = "has no use in a pipe: unwritten records are delivered again by the source"
        raise checks.bad("last_resort", setup.last_resort, rule)
    if setup.on_key_failure != "skip":
        rule = "has no effect in a pipe; use its on_rejected="
        raise checks.bad("on_key_failure", setup.on_key_failure, rule)
    if setup.tenants.has_caps:
        rule = "has caps, which a pipe cannot apply: one full tenant would stop all others; use weights"
        raise checks.bad("tenants", setup.tenants, rule)
    return setup
