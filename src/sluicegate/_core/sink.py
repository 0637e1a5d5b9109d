"""The interface of sinks, and their optional features."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast, runtime_checkable

from .batch import Batch
from .errors import ErrorClass
from .result import WriteResult

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Sink(Protocol[T_contra]):
    """Writes batches to a destination, or is a decorator of one sink or a combinator of several."""

    async def write(self, batch: Batch[T_contra]) -> WriteResult | None:
        """Write every item, once, in order.

        `None` means that every item was delivered. A `WriteResult` has an answer per item. Raising
        fails every unsettled item; the exception's class determines whether it is retried. The same
        batch may be written again, so `write` must not keep state about it. Cancellation must pass
        through.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Guarantees of a sink beyond the protocol; a sink without `capabilities` gives none."""

    key_prefix_safe: bool = False
    """If an item fails, no later item of its key in that write was applied."""
    idempotent: bool = False
    """Writing the same item again changes nothing."""
    repeatable: Literal["item", "write"] | None = None
    """What may be sent again after an unknown outcome without being stored twice: `"write"` (the
    same items together), or `"item"` (also in other parts of their batch). A retry then counts no
    attempt while the destination is down. An idempotent sink is repeatable by item.
    """
    transactional: bool = False
    """The sink has `transaction(unit)`."""
    columnar: bool = False
    """The sink writes columns without creating rows."""
    several_destinations: bool = False
    """Items go to different places: an accepted item proves nothing about a refused one."""
    max_concurrency: int | None = None
    """Maximum number of concurrent writes; `None` is no limit."""

    def __post_init__(self) -> None:
        if self.idempotent:
            object.__setattr__(self, "repeatable", "item")


NOTHING_PROMISED = Capabilities()


@runtime_checkable
class RefusesRetry(Protocol):
    """A sink that would resend delivered items in a `Retry`; the reason ends an error text."""

    refuses_retry: str


@runtime_checkable
class TimeLimited(Protocol):
    """A sink that limits the time of a write between backoffs, in seconds, as `Timeout` does."""

    stretch_limit: float


@runtime_checkable
class RefusesIsolate(Protocol):
    """A sink that would resend delivered items in an `Isolate`; the reason ends an error text."""

    refuses_isolate: str


@runtime_checkable
class RefusesKeys(Protocol):
    """A sink that needs the order of all items, not only per key; the reason ends an error text."""

    refuses_keys: str


@runtime_checkable
class RefusesTransaction(Protocol):
    """A sink that cannot write in a transaction or a stage; the reason ends an error text."""

    refuses_transaction: str


@runtime_checkable
class RefusesPositions(Protocol):
    """A sink that cannot take part in a transaction that commits a source's position.

    It has effects outside the transaction, which a crash after the commit would lose. The reason
    ends an error text.
    """

    refuses_positions: str


@runtime_checkable
class RefusesUnits(Protocol):
    """A destination whose transactions commit only positions of a source, and no units.

    The reason ends an error text.
    """

    refuses_units: str


@runtime_checkable
class TakesDeadLetters(Protocol):
    """A decorator that writes dead letters."""

    @property
    def takes_transient(self) -> bool:
        """Whether it takes items that have failed once, and might succeed in a retry outside."""
        ...

    def dead_letters_around(self, sink: Sink[Any]) -> Sink[Any]:
        """Return the same dead letters around another sink, open while this one is."""
        ...


class SinkDecorator:
    """Base class of our decorators: called with a sink, they return the sink to use instead."""


Classifier = Callable[[BaseException], ErrorClass | None]
"""Returns the class of an error, or `None` for an unknown error."""

Decorator = Callable[[Sink[T]], Sink[T]]
"""Returns a sink around a sink."""
SinkFunction = Callable[[Batch[T]], Awaitable[WriteResult | None] | WriteResult | None]
"""A function that writes a batch, plain or async."""
SinkLike = Sink[T] | SinkFunction[T]
"""A sink, or a plain function of a batch, async or not."""


def capabilities_of(sink: object) -> Capabilities:
    """Return the sink's capabilities; a sink without any gives no guarantees."""
    found = getattr(sink, "capabilities", None)
    return found if isinstance(found, Capabilities) else NOTHING_PROMISED


def repeatable_of_all(known: Iterable[Capabilities]) -> Literal["item", "write"] | None:
    """Return what may be repeated by a sink of several sinks."""
    found = {each.repeatable for each in known}
    return None if None in found else "write" if "write" in found else "item"


def classifier_of(sink: object) -> Classifier | None:
    """Return a sink's own `classify`; `None` for a sink without it."""
    return cast("Classifier | None", getattr(sink, "classify", None))


def stretch_limits(sink: object) -> Iterator[float]:
    """Yield the limits, in seconds, on the time of a write between backoffs, in the whole stack."""
    return (part.stretch_limit for part in walk(sink) if isinstance(part, TimeLimited))


def dead_letters_in(sink: object) -> TakesDeadLetters | None:
    """Return the outermost part of a stack that writes dead letters."""
    return next((part for part in walk(sink) if isinstance(part, TakesDeadLetters)), None)


def inner_of(sink: object) -> object | None:
    """Return the sink that a decorator wraps; `None` for any other sink."""
    return cast("object | None", getattr(sink, "inner", None))


def branches_of(sink: object) -> Sequence[object]:
    """Return the sinks of a combinator; empty for any other sink."""
    return cast("Sequence[object]", getattr(sink, "inners", ()))


def chain(sink: object) -> Iterator[object]:
    """Yield a sink and the sinks that it wraps, outermost first, without branches."""
    link: object | None = sink
    while link is not None:
        yield link
        link = inner_of(link)


def walk(sink: object) -> Iterator[object]:
    """Yield a sink and all sinks inside it, outermost first, by their `inner` and `inners`."""
    yield sink
    if (inner := inner_of(sink)) is not None:
        yield from walk(inner)
    for branch in branches_of(sink):
        yield from walk(branch)
