"""The checked arguments of a transactional flow. If one is refused, nothing has been started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from .._core import checks
from .._core.positions import (
    SettlesInTransaction,
    TakesMoves,
    check_keeps_positions,
    destination_of,
)
from .._core.sink import capabilities_of
from .._core.source import Source, TransactionalSource
from .._core.stacking import as_sink
from .._core.transaction import check_transactional
from ..consumer.batching.batch_options import checked_limits
from ..consumer.settings import check_left_to_source, checked_settings, checked_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

    from .._core.clock import Clock
    from .._core.observer import ConsumerObserver
    from .._core.retry_policy import RetryPolicy
    from .._core.sink import Sink, SinkLike
    from .._core.source import SourceRecord
    from ..consumer.batching.batch_limits import BatchLimits
    from ..consumer.poison import PoisonStrategy
    from ..consumer.settings import ConsumerSettings

MOST_AT_ONCE = 8
"""Default limit of concurrent transactions."""


class TransactionOptions(TypedDict, total=False):
    """The keyword arguments of `flow.transaction`, documented there."""

    name: str
    on_rejected: PoisonStrategy | None
    retry: RetryPolicy | None
    dead_letters: SinkLike[Any] | None
    max_dead_letter_ratio: float | None
    max_consecutive_dead_letters: int | None
    commit_after: int
    commit_bytes: int | None
    commit_every: float | timedelta
    write_size: int
    concurrency: int | None
    max_in_flight: int | None
    max_in_flight_bytes: int
    fetch_max: int
    refill_below: float
    size_of: Callable[[SourceRecord], int] | None
    drain: float | timedelta
    stall_after: float | timedelta | None
    observers: Iterable[ConsumerObserver]
    clock: Clock | None


class TransactionSettings(NamedTuple):
    """The checked arguments of a transactional flow."""

    sink: Sink[Any]
    consumer: ConsumerSettings
    limits: BatchLimits
    """The limits at which a transaction of a partition's records begins."""
    write_size: int


def checked_transaction(
    source: object,
    sink: SinkLike[Any],
    *,
    name: str = "transaction",
    on_rejected: PoisonStrategy | None = None,
    retry: RetryPolicy | None = None,
    dead_letters: SinkLike[Any] | None = None,
    max_dead_letter_ratio: float | None = None,
    max_consecutive_dead_letters: int | None = None,
    commit_after: int = 1000,
    commit_bytes: int | None = 16 << 20,
    commit_every: float | timedelta = 1.0,
    write_size: int = 5000,
    concurrency: int | None = None,
    max_in_flight: int | None = None,
    max_in_flight_bytes: int = 64 << 20,
    fetch_max: int = 1000,
    refill_below: float = 0.75,
    size_of: Callable[[SourceRecord], int] | None = None,
    drain: float | timedelta = 5.0,
    stall_after: float | timedelta | None = 60.0,
    observers: Iterable[ConsumerObserver] = (),
    clock: Clock | None = None,
) -> TransactionSettings:
    """Check the arguments of a transactional flow. Raises `ConfigError`."""
    stack = as_sink(sink, "sink")
    is_leased = False
    if isinstance(source, SettlesInTransaction):
        is_leased = True
        _check_takes_moves(source, destination_of(stack))
        check_left_to_source("on_rejected", on_rejected)
    check_keeps_positions(destination_of(stack))
    check_transactional(stack, positions=True)
    if on_rejected == "park_key":
        rule = "cannot be 'park_key': a parked record is stored outside the transaction"
        raise checks.bad("on_rejected", on_rejected, rule)
    checks.count("commit_after", commit_after)
    checked = _checked_source(source)
    if not is_leased:
        on_rejected = checked_strategy("on_rejected", on_rejected, dead_letters, None)
    settings = checked_settings(
        checked,
        name=name,
        poison=on_rejected,
        retry=retry,
        dead_letters=dead_letters,
        max_dead_letter_ratio=max_dead_letter_ratio,
        max_consecutive_dead_letters=max_consecutive_dead_letters,
        max_in_flight=max(10_000, 4 * commit_after) if max_in_flight is None else max_in_flight,
        max_in_flight_bytes=max_in_flight_bytes,
        fetch_max=fetch_max,
        refill_below=refill_below,
        size_of=size_of,
        concurrency=_concurrency(concurrency, stack),
        drain=drain,
        commit_every=commit_every,
        commit_after=None,
        stall_after=stall_after,
        observers=observers,
        ordering="partition",
        clock=clock,
    )
    limits = checked_limits(
        settings,
        size=commit_after,
        max_wait=0.0
        if is_leased
        else settings.commit_every,  # all records of a lease are there at once
        max_bytes=checks.optional_count("commit_bytes", commit_bytes),
    )
    return TransactionSettings(stack, settings, limits, checks.count("write_size", write_size))


def _checked_source(source: object) -> Source:
    if isinstance(source, TransactionalSource):
        return source
    if isinstance(source, Source) and isinstance(source, SettlesInTransaction):
        return source
    rule = (
        "must be a source whose positions the destination can store, such as KafkaSource; use "
        "flow.pipe for others (at least once)"
    )
    raise checks.bad("source", source, rule)


def _check_takes_moves(source: SettlesInTransaction, destination: object) -> None:
    """Raise `ConfigError` if the destination's transactions cannot settle the source's records."""
    kind = source.moves_in
    if not (isinstance(destination, TakesMoves) and destination.takes_moves_of == kind):
        rule = (
            f"settles its records in transactions of its own {kind}; use PostgresSink or "
            "PostgresEffects there, or flow.pipe (at least once)"
        )
        raise checks.bad("source", source, rule)


def _concurrency(concurrency: int | None, stack: Sink[Any]) -> int:
    most = capabilities_of(destination_of(stack)).max_concurrency
    if concurrency is None:
        return MOST_AT_ONCE if most is None else min(MOST_AT_ONCE, most)
    if checks.count("concurrency", concurrency) > (most or concurrency):
        rule = f"must be at most {most}, the simultaneous writes of the sink"
        raise checks.bad("concurrency", concurrency, rule)
    return concurrency
