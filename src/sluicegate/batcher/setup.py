"""A batcher's arguments: declared once, checked once, and passed as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, get_args

from .._core import checks
from .._core.sink import capabilities_of
from .._core.stacking import as_sink
from .arguments import (
    checked_adaptive,
    checked_handler,
    checked_key,
    checked_key_failure,
    checked_limits,
    checked_measure,
    checked_most_parked,
    checked_name,
    checked_observers,
    checked_tenants,
    dead_letters_of,
    parked_dead_letters_of,
    refuse_misplaced,
)
from .limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

    from .._core.clock import Clock
    from .._core.observer import Observer
    from .._core.order.parking import OnKeyFailure
    from .._core.sink import Sink, SinkLike
    from .adaptive.adaptive import Adaptive
    from .failure_handler import FailureHandler
    from .gathering.pack import Sealed
    from .tenancy import Tenants

T = TypeVar("T")

DEFAULT_NAME = "batcher"
Overflow = Literal["block", "reject", "drop_newest", "drop_oldest"]
Oversize = Literal["alone", "dead_letter", "reject"]
Open = Literal["eager", "lazy"]


class BatcherOptions(TypedDict, Generic[T], total=False):
    """The keywords of `Batcher` and `BlockingBatcher`; `Batcher` explains them."""

    limits: Limits | None
    name: str
    overflow: Overflow
    oversize: Oversize
    size_of: Callable[[T], int] | None
    key: Callable[[T], object] | None
    on_key_failure: OnKeyFailure
    max_parked_items: int | None
    tenant: Callable[[T], object] | None
    tenants: Tenants | None
    on_failure: Literal["log", "crash"] | FailureHandler
    shutdown_deadline: float | timedelta
    last_resort: SinkLike[T] | None
    open: Open
    open_timeout: float | timedelta | None
    adaptive: Adaptive | None
    observers: Iterable[Observer]
    clock: Clock | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(Generic[T]):
    """The checked arguments of a batcher."""

    sink: Sink[T]
    limits: Limits
    name: str
    overflow: Overflow
    oversize: Oversize
    measure: Callable[[T], int] | None
    """Measures an item in bytes; `None` if bytes are not bounded."""
    key: Callable[[T], object] | None
    on_key_failure: OnKeyFailure
    max_parked_items: int
    tenant: Callable[[T], object] | None
    tenants: Tenants
    on_failure: str | FailureHandler
    shutdown_deadline: float
    last_resort: Sink[T] | None
    open: Open
    open_timeout: float | None
    adaptive: Adaptive | None
    observers: tuple[Observer, ...]
    clock: Clock
    oversize_sink: Sink[T] | None
    """The sink that writes too large items to the dead letters."""
    parked_sink: Sink[T] | None
    """The sink that writes parked items beyond the bound to the dead letters."""

    @property
    def sized(self) -> bool:
        """Whether items are measured."""
        return self.measure is not None

    @property
    def drops(self) -> bool:
        """Whether a full ledger drops items."""
        return self.overflow in {"drop_newest", "drop_oldest"}

    @property
    def orders_itself(self) -> bool:
        """Whether items stay in order although a batch in a backoff releases its slot."""
        return self.key is not None or self.tenant is not None

    @property
    def is_ordered(self) -> bool:
        """Whether order depends on sequential batches, and not on the gatherer."""
        return self.limits.workers == 1 and self.key is None and self.tenant is None

    @property
    def key_prefix_safe(self) -> bool:
        """Whether a batch may have several items of one key."""
        return capabilities_of(self.sink).key_prefix_safe

    def sink_for(self, sealed: Sealed[T]) -> Sink[T]:
        """Return the sink that writes a batch."""
        if sealed.spilled and self.parked_sink is not None:
            return self.parked_sink
        most = self.limits.max_bytes
        if self.oversize_sink is not None and most is not None and sealed.bytes > most:
            return self.oversize_sink
        return self.sink


def checked_setup(
    owner: type,
    sink: SinkLike[T],
    *,
    limits: Limits | None = None,
    name: str = DEFAULT_NAME,
    overflow: Overflow = "block",
    oversize: Oversize = "alone",
    size_of: Callable[[T], int] | None = None,
    key: Callable[[T], object] | None = None,
    on_key_failure: OnKeyFailure = "skip",
    max_parked_items: int | None = None,
    tenant: Callable[[T], object] | None = None,
    tenants: Tenants | None = None,
    on_failure: Literal["log", "crash"] | FailureHandler = "log",
    shutdown_deadline: float | timedelta = 25.0,
    last_resort: SinkLike[T] | None = None,
    open: Open = "eager",  # noqa: A002
    open_timeout: float | timedelta | None = None,
    adaptive: Adaptive | None = None,
    observers: Iterable[Observer] = (),
    clock: Clock | None = None,
    **misplaced: Any,
) -> Setup[T]:
    """Check the arguments of an `owner`. Raises `ConfigError` for the first bad one."""
    refuse_misplaced(owner, misplaced)
    target: Sink[T] = as_sink(sink)
    bounds = checked_limits(Limits() if limits is None else limits, target)
    sized = bounds.max_bytes is not None or bounds.max_pending_bytes is not None
    policy = checked_key_failure(on_key_failure, key)
    measure = checked_measure(size_of, sized=sized)
    return Setup(
        sink=target,
        limits=bounds,
        name=checked_name(name),
        overflow=checks.choice("overflow", overflow, get_args(Overflow)),
        oversize=checks.choice("oversize", oversize, get_args(Oversize)),
        measure=measure if sized else None,
        key=checked_key("key", key, target),
        on_key_failure=policy,
        max_parked_items=checked_most_parked(max_parked_items, policy),
        tenant=checked_key("tenant", tenant, target),
        tenants=checked_tenants(tenants, tenant, sized=sized),
        on_failure=checked_handler(on_failure),
        shutdown_deadline=checks.seconds(
            "shutdown_deadline", shutdown_deadline, zero=True, usual=checks.LONG_TIMEOUT
        ),
        last_resort=None if last_resort is None else as_sink(last_resort, "last_resort"),
        open=checks.choice("open", open, get_args(Open)),
        open_timeout=checks.optional_seconds(
            "open_timeout", open_timeout, usual=checks.LONG_PERIOD
        ),
        adaptive=checked_adaptive(adaptive, bounds),
        observers=checked_observers(observers),
        clock=checks.checked_clock(clock),
        oversize_sink=dead_letters_of(target) if oversize == "dead_letter" else None,
        parked_sink=parked_dead_letters_of(target) if policy == "park" else None,
    )
