"""What a sink may answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .errors import ResultMismatch
from .outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sized


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A sink's answer for each item of a batch, by position. Make one with `from_outcomes` or `failed`."""

    size: int
    errors: Mapping[int, BaseException] = field(default_factory=dict[int, BaseException])
    """The items that failed, by index."""
    outcomes: Mapping[int, Outcome] = field(default_factory=dict[int, Outcome])
    """The items that succeeded otherwise than by plain delivery, by index."""
    details: Mapping[int, object] = field(default_factory=dict[int, object])
    """Something per item for its receipt: a returned row, an offset, an id."""

    @classmethod
    def from_outcomes(
        cls,
        batch: Sized,
        outcomes: Iterable[Outcome | BaseException | None],
        *,
        details: Mapping[int, object] | None = None,
    ) -> WriteResult:
        """For destinations that answer by position: per item `None` or a success outcome, or the error it failed with.

        Raises `ResultMismatch` unless there is exactly one answer per item: then nothing can be said of any of them.
        """
        answers = list(outcomes)
        if len(answers) != len(batch):
            message = f"{len(answers)} answers for a batch of {len(batch)} items; the outcome of every item is unknown"
            raise ResultMismatch(message)
        errors: dict[int, BaseException] = {}
        others: dict[int, Outcome] = {}
        for index, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                errors[index] = answer
            elif isinstance(answer, Outcome) and answer.is_success:
                others[index] = answer
            elif answer is not None:
                message = f"answer {index} is {answer!r}; expected None, a success outcome or an exception"
                raise ResultMismatch(message)
        return cls(len(batch), errors, others, details or {})

    @classmethod
    def failed(cls, batch: Sized, errors: Mapping[int, BaseException], *, details: Mapping[int, object] | None = None) -> WriteResult:
        """For sinks that *know* that every item without an error here was delivered.

        Raises `ResultMismatch` for an index outside the batch.
        """
        stray = [i for i in errors if not 0 <= i < len(batch)]
        if stray:
            message = f"errors for items {stray} of a batch of {len(batch)} items; the outcome of every item is unknown"
            raise ResultMismatch(message)
        return cls(len(batch), dict(errors), {}, details or {})
