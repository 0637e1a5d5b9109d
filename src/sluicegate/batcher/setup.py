"""A batcher's arguments: declared once, checked once, and passed as a whole.

Each refusal is a `ConfigError` with name, value and rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import index
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    SupportsIndex,
    TypedDict,
    TypeVar,
    cast,
    get_args,
)

from .._core import checks
from .._core.errors import ParkedBehind, PermanentError
from .._core.observer import Observer
from .._core.sink import (
    RefusesKeys,
    capabilities_of,
    check_single_store,
    dead_letters_in,
    stretch_limits,
    walk,
)
from .._core.spooling import MakesFront
from .._core.stacking import as_sink
from .._core.text import repr_of
from .adaptive import Adaptive
from .gathering.holds import MOST_PARKED, POLICIES
from .limits import Limits, Tenants

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from datetime import timedelta

    from .._core.batch import Batch
    from .._core.clock import Clock
    from .._core.sink import Sink, SinkLike
    from .._core.spooling import SpoolFront
    from .gathering.holds import OnKeyFailure
    from .gathering.pack import Sealed


FailureHandler = Callable[[list[Any], BaseException], object]
"""Called with items that have failed together, and their error."""


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
    spool: MakesFront | None


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
    spool: SpoolFront | None = None
    """The spool to which this batcher writes."""
    spare_workers: int = 0
    """Workers beyond the limit, whose batches the sink itself keeps in order."""

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
        is_single = self.limits.workers == 1 and not self.spare_workers
        return is_single and self.key is None and self.tenant is None

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
    spool: MakesFront | None = None,
) -> Setup[T]:
    """Check the arguments. Raises `ConfigError` for the first bad one."""
    target: Sink[T] = as_sink(sink)
    bounds = checked_limits(Limits() if limits is None else limits, target)
    sized = bounds.max_bytes is not None or bounds.max_pending_bytes is not None
    policy = checked_key_failure(on_key_failure, key)
    measure = checked_measure(size_of, sized=sized)
    setup = Setup(
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
    if spool is None:
        return setup
    if isinstance(spool, type) or not isinstance(cast("object", spool), MakesFront):
        raise checks.bad("spool", spool, "must be a Spool(path)")
    return cast("Setup[T]", spool.in_front_of(setup))


def checked_name(name: object) -> str:
    """Check that the name is a string and not empty."""
    if not isinstance(name, str) or not name:
        raise checks.bad("name", name, "must be a string that is not empty")
    return name


def checked_limits(limits: object, sink: object) -> Limits:
    """Check the limits against the sink's own."""
    if not isinstance(limits, Limits):
        raise checks.bad("limits", limits, "must be a Limits(...), such as Limits(max_items=500)")
    most = capabilities_of(sink).max_concurrency
    if most is not None and limits.workers > most:
        rule = f"the sink takes at most {most} writes at once (its max_concurrency)"
        raise checks.bad("workers", limits.workers, rule)
    for stretch in stretch_limits(sink):
        if stretch >= limits.stretch:
            rule = (
                f"must be longer than the Timeout({stretch}) in the stack, or an attempt is cut "
                "before it can be retried"
            )
            raise checks.bad("flush_timeout", limits.stretch, rule)
    return limits


def checked_adaptive(adaptive: object, limits: Limits) -> Adaptive | None:
    """Check the adaptive rules against the limits."""
    if adaptive is None:
        return None
    if not isinstance(adaptive, Adaptive):
        raise checks.bad(
            "adaptive", adaptive, "must be an Adaptive(...), such as Adaptive(), or None"
        )
    adaptive.check_against(limits)
    return adaptive


def checked_key(
    name: str, function: Callable[[T], object] | None, sink: object
) -> Callable[[T], object] | None:
    """Check the function from an item to its key or tenant, and that the sink allows one."""
    rule = f"must be a function of an item that returns its {name}"
    given: object = function
    if isinstance(given, str) and given.isidentifier():
        rule += f", such as lambda item: item[{given!r}]"
    made = cast("Callable[[T], object] | None", checks.optional_function(name, given, rule))
    for part in () if made is None else walk(sink):
        if isinstance(part, RefusesKeys):
            raise checks.bad(name, made, f"cannot be used with {part!r}: {part.refuses_keys}")
    return made


def checked_tenants(tenants: object, tenant: object, *, sized: bool) -> Tenants:
    """Check the shares and caps of tenants."""
    if tenants is None:
        return Tenants()
    if tenant is None:
        rule = "has no meaning without tenant, the function from an item to its tenant"
        raise checks.bad("tenants", tenants, rule)
    if not isinstance(tenants, Tenants):
        raise checks.bad("tenants", tenants, "must be a Tenants(...), as in Tenants(weights=...)")
    if tenants.max_pending_bytes is not None and not sized:
        rule = (
            "needs sizes: give limits max_bytes or max_pending_bytes, and size_of unless "
            "items are bytes-like"
        )
        raise checks.bad("max_pending_bytes", tenants.max_pending_bytes, rule)
    return tenants


def checked_key_failure(policy: OnKeyFailure, key: object) -> OnKeyFailure:
    """Check the policy for keys of failed items."""
    if policy != "skip" and key is None:
        raise checks.bad("on_key_failure", policy, "has no effect without key=")
    return checks.choice("on_key_failure", policy, POLICIES)


def checked_most_parked(most: int | None, policy: OnKeyFailure) -> int:
    """Check the maximum of parked items of a key."""
    if most is not None and policy != "park":
        raise checks.bad("max_parked_items", most, "has no effect without on_key_failure='park'")
    return MOST_PARKED if most is None else checks.count("max_parked_items", most)


def checked_measure(size_of: Callable[[T], int] | None, *, sized: bool) -> Callable[[T], int]:
    """Check the function that measures an item, or choose the default."""
    if size_of is None:
        return cast("Callable[[T], int]", _size_of_bytes)
    rule = "must be a function of an item that returns its size in bytes"
    checks.function("size_of", size_of, rule)
    if not sized:
        rule = "has no effect without max_bytes or max_pending_bytes in limits"
        raise checks.bad("size_of", size_of, rule)
    return size_of


def checked_size(size: object) -> int:
    """Check a result of `size_of`: `TypeError` if it is not a whole number, `ValueError` below 0."""
    try:
        found = index(cast("SupportsIndex", size))
    except TypeError:
        found = None
    if found is None or found < 0:
        kind = TypeError if found is None else ValueError
        raise kind(
            f"size_of returned {repr_of(size)}; it must return a whole number of bytes, 0 or more"
        )
    return found


def _size_of_bytes(item: Any) -> int:
    if isinstance(item, (bytes, bytearray)):
        return len(item)
    if isinstance(item, memoryview):
        return cast("memoryview[int]", item).nbytes
    message = (
        f"items must be bytes-like to be measured, not {type(item).__name__}; give "
        "Batcher(size_of=...)"
    )
    raise TypeError(message)


def checked_handler(handler: str | FailureHandler) -> str | FailureHandler:
    """Check the failure handler."""
    if handler in ("log", "crash"):
        return handler
    rule = "must be 'log', 'crash' or a function of (items, error)"
    return cast("FailureHandler", checks.function("on_failure", handler, rule, takes=2))


def checked_observers(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """Check that all observers are instances."""
    given = cast("object", observers)
    if isinstance(given, (Observer, type, str)) or not isinstance(given, Iterable):
        raise checks.bad("observers", given, "must be a list of observers: observers=[observer]")
    watchers = tuple(observers)
    for watcher in watchers:
        if isinstance(watcher, type):
            rule = f"contains a class; pass an instance: {watcher.__name__}(...)"
            raise checks.bad("observers", watcher, rule)
        if not callable(getattr(watcher, "on_flushed", None)):
            rule = "contains an object that is no observer; derive a class from sluicegate.Observer"
            raise checks.bad("observers", watcher, rule)
    return watchers


def dead_letters_of(sink: Sink[T]) -> Sink[T]:
    """Return a sink that writes too large items to the dead letters of the stack."""

    async def refuse(batch: Batch[T]) -> None:
        message = f"an item of {batch.size_bytes} bytes is larger than max_bytes"
        raise PermanentError(message)

    return _dead_letters_around(sink, refuse, "oversize", "dead_letter")


def parked_dead_letters_of(sink: Sink[T]) -> Sink[T]:
    """Return a sink that writes parked items to the dead letters of the stack."""

    async def refuse(batch: Batch[T]) -> None:
        if not batch.keys:
            raise ParkedBehind("parked")
        key = repr_of(batch.keys[0])
        whose = "" if batch.tenant is None else f" of tenant {repr_of(batch.tenant)}"
        raise ParkedBehind(f"parked behind an earlier failed item of its key {key}{whose}")

    check_single_store(sink)
    return _dead_letters_around(sink, refuse, "on_key_failure", "park")


def _dead_letters_around(
    sink: Sink[T], refuse: Callable[[Batch[T]], Awaitable[None]], name: str, value: str
) -> Sink[T]:
    letters = dead_letters_in(sink)
    if letters is None:
        raise checks.bad(name, value, "needs a DeadLetter(...) in the stack")
    return letters.dead_letters_around(as_sink(refuse))
