"""Items of a delivery on one or several branches (`delivery.py`, rule 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from ..clock import CountedSignal
from ..errors import StoppedError, UnknownOutcomeError
from ..outcome import Outcome, worst
from .delivery import Delivery
from .host import PassesReports

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..clock import Signal
    from .host import Details
    from .states import RetryEnd, Tries

    Settled = Callable[[Sequence[int], Outcome, Details], None]


OutcomeMap = Callable[[Outcome], Outcome]
"""Returns the outcome of an item from its outcome on a branch."""
BatchT = TypeVar("BatchT")


class Fork(Generic[BatchT]):
    """A context manager that returns a batch per branch.

    On exit, even by an exception, the parent takes over the branches' knowledge of unsettled items.
    """

    __slots__ = ("_branches", "_ended", "_maps", "_maybe", "_on", "_parent", "_required", "members")

    def __init__(
        self,
        parent: Delivery,
        members: Sequence[int],
        on: Callable[[Delivery], BatchT],
        maps: Mapping[str, OutcomeMap],
        *,
        best_effort: frozenset[str] = frozenset(),
        same_destination: bool = False,
    ) -> None:
        self.members = frozenset(members)
        self._parent = parent
        self._on = on
        self._maps = dict(maps)
        self._required = [label for label in maps if label not in best_effort]
        self._maybe = self.members & parent.maybe_applied if same_destination else frozenset[int]()
        self._branches: dict[str, Branch] = {}
        self._ended: set[str] = set()

    def __enter__(self) -> dict[str, BatchT]:
        for label in self._maps:
            settled_by = self._settled if label in self._required else None
            self._branches[label] = Branch(self._parent, label, settled_by, self._maybe)
        self._parent.fork_begins(self)
        return {label: self._on(branch) for label, branch in self._branches.items()}

    def __exit__(self, *_: object) -> None:
        self._parent.fork_ends(self)

    @property
    def has_stragglers(self) -> bool:
        """Whether there is a best-effort branch, at any depth."""
        nested = any(branch.has_stragglers for branch in self._branches.values())
        return nested or len(self._required) < len(self._maps)

    def verdict(self, index: int) -> Outcome:
        return worst(self._verdicts(index).values())

    def error(self, index: int) -> BaseException:
        """Return the error of an unsettled item: that of the branch that determines its verdict."""
        verdict, verdicts = self.verdict(index), self._verdicts(index)
        unsent = verdict is Outcome.UNSENT
        for label, own in verdicts.items():
            error = self._branches[label].error(index) if own is verdict else None
            if error is not None and (not unsent or isinstance(error, StoppedError)):
                return error
        if unsent:
            return StoppedError("no branch has sent it")
        each = ", ".join(f"{label}: {own.value}" for label, own in verdicts.items())
        return UnknownOutcomeError(f"the branches do not agree ({each})")

    def has_part_of(self, index: int) -> bool:
        applied = any(verdict.is_safe for verdict in self._verdicts(index).values())
        branches = self._branches
        return applied or any(index in branches[label].states.partly for label in self._required)

    def tries(self, index: int) -> Tries | None:
        known = filter(None, (self._branches[label].tries(index) for label in self._required))
        return max(known, key=lambda tries: tries.count, default=None)

    def withdraw(self, indices: Collection[int]) -> None:
        """Stop sending these items, on any branch."""
        for branch in self._branches.values():
            branch.withdraw(indices)

    def hurry(self, label: str) -> None:
        self._branches[label].hurry()

    def end(self, label: str) -> None:
        """End this branch, and settle the items that waited only for it or for cut branches."""
        self._ended.add(label)
        if label in self._required:
            self._decide(self.members, None)

    def _verdicts(self, index: int) -> dict[str, Outcome]:
        maps, branches = self._maps, self._branches
        return {label: maps[label](branches[label].verdict(index)) for label in self._required}

    def _settled(self, indices: Sequence[int], _: Outcome, details: Details) -> None:
        self._decide(indices, details)

    def _decide(self, indices: Iterable[int], details: Details) -> None:
        required = [(label, self._branches[label]) for label in self._required]
        done: dict[Outcome, list[int]] = {}
        for index in indices:
            if all(branch.is_settled(index) or label in self._ended for label, branch in required):
                done.setdefault(self.verdict(index), []).append(index)
        for answer, group in done.items():
            if answer.is_safe:
                self._parent.settle(group, answer, details)
            elif answer is Outcome.UNKNOWN and any(branch.was_cut for _, branch in required):
                self._parent.finish(group, answer)  # other failures propagate outward


class BranchBooks(PassesReports["Delivery"]):
    """The books of a branch: outcomes go to its fork, reports about the destination to the parent."""

    __slots__ = ("_settled_by",)

    def __init__(self, parent: Delivery, settled_by: Settled | None) -> None:
        super().__init__(parent)
        self._settled_by = settled_by

    def book_outcome(self, indices: Sequence[int], outcome: Outcome, details: Details) -> None:
        if self._settled_by is not None:
            self._settled_by(indices, outcome, details)


class Branch(Delivery):
    """The delivery of the parent's items on one branch."""

    __slots__ = ("_hurry", "_parent")

    def __init__(
        self, parent: Delivery, label: str, settled_by: Settled | None, maybe_applied: Iterable[int]
    ) -> None:
        super().__init__(
            len(parent.states),
            books=BranchBooks(parent, settled_by),
            pacing=parent.pacing,
            labels=(*parent.labels, label),
        )
        self.join(parent.activity)
        self.doubt(maybe_applied)
        if parent.withdrawn:
            self.withdraw(parent.withdrawn)
        self._parent = parent
        self._hurry = CountedSignal()
        """Fires once, when the fork stops waiting for this branch."""

    @property
    def closed(self) -> bool:
        return self._closed or self._parent.closed

    def begin(self, indices: Sequence[int]) -> None:
        if self._parent.closed:
            raise asyncio.CancelledError
        super().begin(indices)

    def settle(self, indices: Sequence[int], outcome: Outcome, details: Details = None) -> None:
        if self._parent.closed:
            self.late += len(indices)
        else:
            super().settle(indices, outcome, details)

    def end_retries(self, ends: Sequence[tuple[BaseException, RetryEnd]]) -> None:
        self._parent.end_retries(ends)  # the errors also leave the branch

    def retry_end(self, error: BaseException) -> RetryEnd | None:
        return self._parent.retry_end(error)

    @property
    def is_hurried(self) -> bool:
        return self._hurry.count > 0 or self._parent.is_hurried

    def hurry(self) -> None:
        self._hurry.fire()

    def hurries(self) -> tuple[Signal, ...]:
        return (self._hurry, *self._parent.hurries())
