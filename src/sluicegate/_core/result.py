"""The answers of a sink to a write."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice, repeat
from operator import is_
from typing import TYPE_CHECKING, cast

from .answer import checked_details, checked_errors, checked_outcomes
from .batch import Batch
from .errors import ResultMismatch
from .outcome import Outcome
from .text import repr_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sized

    from .lineage import Lineage


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A sink's answer for each item of a batch. Create it with `from_outcomes` or `failed`.

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
        """Create a result from answers by position: `None`, a safe outcome or the item's error.

        Raises `ResultMismatch` unless there is exactly one answer per item; the outcome of every
        item is then unknown.
        """
        size = len(batch)
        answers = _listed(outcomes, size)
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


def _listed(outcomes: Iterable[Outcome | BaseException | None], size: int) -> list[object]:
    is_sized = isinstance(outcomes, (list, tuple))
    try:  # reads one surplus answer at most: an iterable may be infinite
        return list(outcomes if is_sized else islice(outcomes, size + 1))
    except TypeError as error:
        given = f"the answers are {repr_of(outcomes)}"
        raise ResultMismatch(f"{given}; give one for each item of the batch") from error


def _sealed_lineage(batch: Sized) -> Lineage | None:
    """Return the lineage of a sealed batch; `None` for a batch that a sink created."""
    if isinstance(batch, Batch) and batch.lineage.sealed_at is not None:
        return batch.lineage
    return None
