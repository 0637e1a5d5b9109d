"""The answers of a sink to a write."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
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
    """A sink's answer for each item of a batch, by position. Make one with `from_outcomes` or
    `failed`.

    It is checked when `write` has returned it. One that does not fit the batch (see
    `ResultMismatch`), or was made for another batch of a batcher, leaves every unsettled item
    `unknown`.
    """

    size: int
    errors: Mapping[int, BaseException] = field(default_factory=dict[int, BaseException])
    """The items that failed, by index."""
    outcomes: Mapping[int, Outcome] = field(default_factory=dict[int, Outcome])
    """The items that succeeded otherwise than by plain delivery, by index."""
    details: Mapping[int, object] = field(default_factory=dict[int, object])
    """Something per item for its receipt: a returned row, an offset, an id."""
    lineage: Lineage | None = field(default=None, repr=False, compare=False)
    """The lineage of the batch that it was made for, where a batcher sealed that; `None`
    otherwise.
    """

    @classmethod
    def from_outcomes(
        cls,
        batch: Sized,
        outcomes: Iterable[Outcome | BaseException | None],
        *,
        details: Mapping[int, object] | None = None,
    ) -> WriteResult:
        """For destinations that answer by position: per item `None` or a success outcome, or the
        error it failed with.

        Raises `ResultMismatch` unless there is exactly one answer per item: then nothing can be
        said of any of them.
        """
        size = len(batch)
        answers = _listed(outcomes, size)
        if len(answers) != size:
            many = len(answers) if len(answers) <= size else f"more than {size}"
            message = (
                f"{many} answers for a batch of {size} items; the outcome of every item is unknown"
            )
            raise ResultMismatch(message)
        errors: dict[int, BaseException] = {}
        others: dict[int, Outcome] = {}
        for index, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                errors[index] = answer
            elif isinstance(answer, Outcome) and answer.is_success:
                others[index] = answer
            elif answer is not None:
                message = (
                    f"answer {index} is {repr_of(answer)}; expected None, a success "
                    "outcome or an exception"
                )
                raise ResultMismatch(message)
        return cls(
            size, errors, others, checked_details(details or {}, size), _sealed_lineage(batch)
        )

    @classmethod
    def failed(
        cls,
        batch: Sized,
        errors: Mapping[int, BaseException],
        *,
        details: Mapping[int, object] | None = None,
    ) -> WriteResult:
        """For sinks that *know* that every item without an error here was delivered.

        Raises `ResultMismatch` for an index outside the batch, and for an error that is no
        exception.
        """
        size = len(batch)
        return cls(
            size,
            checked_errors(errors, size),
            {},
            checked_details(details or {}, size),
            _sealed_lineage(batch),
        )


def checked_result(
    result: WriteResult, batch: Batch[object]
) -> tuple[dict[int, BaseException], dict[int, Outcome], dict[int, object]]:
    """Copies of a result's errors, outcomes and details, which fit the batch. Raises
    `ResultMismatch`.
    """
    size = len(batch)
    told = cast("object", result.size)  # whatever a sink has put there
    if not isinstance(told, int) or told != size:
        message = (
            f"a result for {repr_of(told)} items answers a batch of {size}; the outcome "
            "of every item is unknown"
        )
        raise ResultMismatch(message)
    if result.lineage is not None and result.lineage is not batch.lineage:
        message = (
            f"a result for batch {result.lineage.id} answers batch {batch.id}; make a "
            "new one for every write"
        )
        raise ResultMismatch(message)
    errors, outcomes = checked_errors(result.errors, size), checked_outcomes(result.outcomes, size)
    both = errors.keys() & outcomes.keys()
    if both:
        message = (
            f"items {sorted(both)[:5]} have an error and an outcome; give each item one of them"
        )
        raise ResultMismatch(message)
    return errors, outcomes, checked_details(result.details, size)


def _listed(outcomes: Iterable[Outcome | BaseException | None], size: int) -> list[object]:
    """At most one answer more than there should be, since an iterable may have no end."""
    try:
        return (
            list(outcomes)
            if isinstance(outcomes, (list, tuple))
            else list(islice(outcomes, size + 1))
        )
    except TypeError as error:
        message = f"the answers are {repr_of(outcomes)}; give one for each item of the batch"
        raise ResultMismatch(message) from error


def _sealed_lineage(batch: Sized) -> Lineage | None:
    """The lineage of a batch that a batcher sealed. A sink may answer with the result for a batch
    that it made of its own.
    """
    return (
        batch.lineage if isinstance(batch, Batch) and batch.lineage.sealed_at is not None else None
    )
