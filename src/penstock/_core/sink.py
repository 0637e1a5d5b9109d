"""The interface of sinks, and the optional abilities of a sink."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from .batch import Batch
from .errors import ErrorClass
from .result import WriteResult

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Sink(Protocol[T_contra]):
    """A writer of batches: a destination, a decorator of one sink or a combinator of several."""

    async def write(self, batch: Batch[T_contra]) -> WriteResult | None:
        """Write every item, once, in order.

        `None` means that every item was delivered. A `WriteResult` answers per item. Raising fails
        every unsettled item; the exception's class decides about a retry. The same batch may be
        written again: `write` must not keep state of it. Cancellation must pass through.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The promises of a sink beyond the protocol; none for a sink without `capabilities`."""

    key_prefix_safe: bool = False
    """If an item fails, no later item of its key in that write took effect."""
    idempotent: bool = False
    """Writing the same item again changes nothing."""
    transactional: bool = False
    """It has `transaction(unit)`."""
    columnar: bool = False
    """It writes columns without making rows."""
    several_destinations: bool = False
    """Different items go to different places: an accepted one proves nothing for a refused one."""
    max_concurrency: int | None = None
    """The most writes at once; `None` is no limit."""


NOTHING_PROMISED = Capabilities()


@runtime_checkable
class RefusesRetry(Protocol):
    """A sink that sends delivered items again below a `Retry`; the reason ends an error text."""

    refuses_retry: str


@runtime_checkable
class TimeLimited(Protocol):
    """A sink that limits every stretch of a write between backoffs to seconds, as `Timeout`."""

    stretch_limit: float


@runtime_checkable
class RefusesIsolate(Protocol):
    """A sink that sends delivered items again below an `Isolate`; the reason ends an error text."""

    refuses_isolate: str


@runtime_checkable
class RefusesTransaction(Protocol):
    """A sink that cannot write in a transaction or stage; the reason ends an error text."""

    refuses_transaction: str


@runtime_checkable
class RefusesPositions(Protocol):
    """A sink that has effects outside a transaction which are lost with a crash after it, so that it
    cannot be in one that commits a source's position; the reason ends an error text.
    """

    refuses_positions: str


@runtime_checkable
class RefusesUnits(Protocol):
    """A destination whose transactions commit positions of a source only, and no units; the reason
    ends an error text.
    """

    refuses_units: str


@runtime_checkable
class TakesDeadLetters(Protocol):
    """A decorator that writes dead letters."""

    def dead_letters_around(self, sink: Sink[Any]) -> Sink[Any]:
        """The same dead letters around another sink, open while this one is."""
        ...


class SinkDecorator:
    """Base of our decorators: called with a sink, they return the sink to use in its place."""


Classifier = Callable[[BaseException], ErrorClass | None]
"""Tells the class of an error, or `None` for one it does not know."""

Decorator = Callable[[Sink[T]], Sink[T]]
SinkFunction = Callable[[Batch[T]], Awaitable[WriteResult | None] | WriteResult | None]
SinkLike = Sink[T] | SinkFunction[T]
"""A sink, or a plain function of a batch, async or not."""


def capabilities_of(sink: object) -> Capabilities:
    """The sink's capabilities; no promises for a sink without any."""
    found = getattr(sink, "capabilities", None)
    return found if isinstance(found, Capabilities) else NOTHING_PROMISED


def classifier_of(sink: object) -> Classifier | None:
    """A sink's own `classify`; `None` for a sink without."""
    return cast("Classifier | None", getattr(sink, "classify", None))


def stretch_limits(sink: object) -> Iterator[float]:
    """The limits, in seconds, on a stretch of a write anywhere in the stack."""
    return (part.stretch_limit for part in walk(sink) if isinstance(part, TimeLimited))


def dead_letters_in(sink: object) -> TakesDeadLetters | None:
    """The outermost part of a stack that writes dead letters."""
    return next((part for part in walk(sink) if isinstance(part, TakesDeadLetters)), None)


def inner_of(sink: object) -> object | None:
    """The sink that a decorator wraps; `None` for any other sink."""
    return cast("object | None", getattr(sink, "inner", None))


def branches_of(sink: object) -> Sequence[object]:
    """The sinks of a combinator; empty for any other sink."""
    return cast("Sequence[object]", getattr(sink, "inners", ()))


def walk(sink: object) -> Iterator[object]:
    """A sink and all sinks inside it, outermost first, found by their `inner` and `inners`."""
    yield sink
    if (inner := inner_of(sink)) is not None:
        yield from walk(inner)
    for branch in branches_of(sink):
        yield from walk(branch)
