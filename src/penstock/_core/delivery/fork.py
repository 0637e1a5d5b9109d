"""Items of a delivery on one or several ways of their own.

An item is settled when every required branch has settled it, and its verdict is the worst of its
branches'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from ..errors import StoppedError, UnknownOutcomeError
from ..outcome import Outcome, worst

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from .delivery import Delivery, Tries

OutcomeMap = Callable[[Outcome], Outcome]
BatchT = TypeVar("BatchT")


class Fork(Generic[BatchT]):
    """Items on one or several ways of their own; entered with `with`, which gives a batch per
    branch.

    On leaving, however that happens, what the branches knew of unsettled items becomes the parent's
    knowledge.
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
        self._branches: dict[str, Delivery] = {}
        self._ended: set[str] = set()

    def __enter__(self) -> dict[str, BatchT]:
        for label in self._maps:
            settled_by = self._branch_settled if label in self._required else None
            self._branches[label] = self._parent.branch(label, settled_by, self._maybe)
        self._parent.fork_begins(self)
        return {label: self._on(branch) for label, branch in self._branches.items()}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._parent.fork_ends(self)

    @property
    def has_stragglers(self) -> bool:
        """Whether a branch may be behind the required ones: a best-effort one, here or further
        inside.
        """
        return len(self._required) < len(self._maps) or any(
            branch.has_stragglers for branch in self._branches.values()
        )

    def verdict(self, index: int) -> Outcome:
        """The worst of what the required branches say of an item, each mapped as the fork was told
        to.
        """
        return worst(self._said(index).values())

    def error(self, index: int) -> BaseException:
        """Why an item that the branches did not settle has failed: the error of the branch that
        decides.
        """
        verdict = self.verdict(index)
        for label, said in self._said(index).items():
            error = self._branches[label].error(index)
            if (
                said is verdict
                and error is not None
                and (verdict is not Outcome.UNSENT or isinstance(error, StoppedError))
            ):
                return error
        if verdict is Outcome.UNSENT:
            return StoppedError("no branch has sent it")
        told = ", ".join(f"{label}: {said.value}" for label, said in self._said(index).items())
        return UnknownOutcomeError(f"the branches do not agree ({told})")

    def has_part_of(self, index: int) -> bool:
        """Whether the item was applied on one of the required ways."""
        applied = any(said.is_success for said in self._said(index).values())
        return applied or any(
            self._branches[label].was_applied_in_part(index) for label in self._required
        )

    def tries(self, index: int) -> Tries | None:
        """The failed tries of the branch that tried most often."""
        known = [
            tries
            for label in self._required
            if (tries := self._branches[label].tries(index)) is not None
        ]
        return max(known, key=lambda tries: tries.count, default=None)

    def end(self, label: str) -> None:
        """Nothing more comes from this branch. What waited only for it, beside a branch that was
        cut and does not end, is decided now.
        """
        self._ended.add(label)
        if label in self._required:
            self._decide(self.members, None)

    def _said(self, index: int) -> dict[str, Outcome]:
        return {
            label: self._maps[label](self._branches[label].verdict(index))
            for label in self._required
        }

    def _branch_settled(
        self, indices: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None
    ) -> None:
        self._decide(indices, details)

    def _decide(self, indices: Iterable[int], details: Mapping[int, object] | None) -> None:
        """Settle what succeeded everywhere. What was cut in a branch that does not end is unknown
        for good; other failures go outward.
        """
        required = [(label, self._branches[label]) for label in self._required]
        done: dict[Outcome, list[int]] = {}
        for index in indices:
            if all(branch.is_settled(index) or label in self._ended for label, branch in required):
                done.setdefault(self.verdict(index), []).append(index)
        for answer, group in done.items():
            if answer.is_success:
                self._parent.settle(group, answer, details)
            elif answer is Outcome.UNKNOWN and any(branch.was_cut for _, branch in required):
                self._parent.finish(group, answer)
