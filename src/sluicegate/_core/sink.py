"""The interface of sinks, their results, and their optional features."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from operator import is_
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast, runtime_checkable

from .answer import checked_details, checked_errors, checked_outcomes
from .batch import Batch
from .checks import bad
from .errors import ResultMismatch
from .outcome import Outcome
from .text import repr_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sized

    from .batch import Lineage
    from .classify import Classifier

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A sink's result for each item of a batch. Create it with `from_outcomes` or `failed`.

    It is checked after `write` has returned it. If it does not fit the batch (`ResultMismatch`), or
    was created for another batch of a batcher, every unsettled item is `unknown`.
    """

    size: int
    errors: Mapping[int, BaseException] = field(default_factory=dict[int, BaseException])
    """Errors of the failed items, by index."""
    outcomes: Mapping[int, Outcome] = field(default_factory=dict[int, Outcome])
    """Outcomes of items that succeeded other than by plain delivery, by index."""
    details: Mapping[int, object] = field(default_factory=dict[int, object])
    """Objects for the receipts of items, by index: a returned row, an offset, an id."""
    lineage: Lineage | None = field(default=None, repr=False, compare=False)
    """The lineage of its batch, if the batch was sealed by a batcher."""

    @classmethod
    def from_outcomes(
        cls,
        batch: Sized,
        outcomes: Iterable[Outcome | BaseException | None],
        *,
        details: Mapping[int, object] | None = None,
    ) -> WriteResult:
        """Create a result from one entry per item, by position: `None`, a safe outcome or the
        item's error.

        Raises `ResultMismatch` unless there is exactly one entry per item; the outcome of every
        item is then unknown.
        """
        size = len(batch)
        try:
            answers: list[object] = list(islice(outcomes, size + 1))  # may be infinite
        except TypeError as error:
            given = f"the answers are {repr_of(outcomes)}"
            raise ResultMismatch(f"{given}; give one for each item of the batch") from error
        if len(answers) != size:
            many = len(answers) if len(answers) <= size else f"more than {size}"
            given = f"{many} answers for a batch of {size} items"
            raise ResultMismatch(f"{given}; the outcome of every item is unknown")
        errors: dict[int, BaseException] = {}
        others: dict[int, Outcome] = {}
        is_plain = all(map(is_, answers, repeat(None)))  # a loop in C
        for index, answer in enumerate(() if is_plain else answers):
            if isinstance(answer, BaseException):
                errors[index] = answer
            elif isinstance(answer, Outcome) and answer.is_safe:
                others[index] = answer
            elif answer is not None:
                given = f"answer {index} is {repr_of(answer)}"
                raise ResultMismatch(f"{given}; expected None, a safe outcome or an exception")
        told = checked_details(details or {}, size)
        return cls(size, errors, others, told, _sealed_lineage(batch))

    @classmethod
    def failed(
        cls,
        batch: Sized,
        errors: Mapping[int, BaseException],
        *,
        details: Mapping[int, object] | None = None,
    ) -> WriteResult:
        """Create a result in which every item without an error was certainly delivered.

        Raises `ResultMismatch` for an index out of range or an error that is not an exception.
        """
        size = len(batch)
        failures, told = checked_errors(errors, size), checked_details(details or {}, size)
        return cls(size, failures, {}, told, _sealed_lineage(batch))


def checked_result(
    result: WriteResult, batch: Batch[object]
) -> tuple[dict[int, BaseException], dict[int, Outcome], dict[int, object]]:
    """Check a result against the batch; return copies of its mappings. Raises `ResultMismatch`."""
    size = len(batch)
    told = cast("object", result.size)  # a sink may pass anything
    if not isinstance(told, int) or told != size:
        given = f"a result for {repr_of(told)} items answers a batch of {size}"
        raise ResultMismatch(f"{given}; the outcome of every item is unknown")
    if result.lineage is not None and result.lineage is not batch.lineage:
        given = f"a result for batch {result.lineage.id} answers batch {batch.id}"
        raise ResultMismatch(f"{given}; make a new one for every write")
    errors, outcomes = checked_errors(result.errors, size), checked_outcomes(result.outcomes, size)
    if both := errors.keys() & outcomes.keys():
        given = f"items {sorted(both)[:5]} have an error and an outcome"
        raise ResultMismatch(f"{given}; give each item one of them")
    return errors, outcomes, checked_details(result.details, size)


def _sealed_lineage(batch: Sized) -> Lineage | None:
    """Return the lineage of a sealed batch; `None` for a batch that a sink created."""
    if isinstance(batch, Batch) and batch.lineage.sealed_at is not None:
        return batch.lineage
    return None


T_contra = TypeVar("T_contra", contravariant=True)


class Sink(Protocol[T_contra]):
    """Writes batches to a destination, or is a decorator of one sink or a combinator of several."""

    async def write(self, batch: Batch[T_contra]) -> WriteResult | None:
        """Write every item, once, in order.

        `None` means that every item was delivered. A `WriteResult` has one result per item. Raising
        an exception fails every unsettled item; the exception's class determines whether it is
        retried. The same batch may be written again, so `write` must not keep state about it. Do
        not suppress cancellation.
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
    same items together), or `"item"` (even in other parts of their batch). A retry then counts no
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
    """Return the `repeatable` ability of a sink of several sinks."""
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


def check_single_store(sink: object) -> None:
    """Check that the parked items of a stack have one store. Raises `ConfigError`."""
    if sum(isinstance(part, TakesDeadLetters) for part in chain(sink)) > 1:
        rule = "needs a single DeadLetter in the stack, whose store has a key's letters in order"
        raise bad("on_key_failure", "park", rule)


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
