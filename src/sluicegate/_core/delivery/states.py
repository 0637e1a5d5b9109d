"""The states of a batch's items, and the table of their transitions.

A settled item changes only if its transaction is rolled back; any other item enters every state
that the table allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..errors import KeyRepeated, StoppedError, UnknownOutcomeError
from ..outcome import Outcome
from ..verdict import outcome_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

FRESH, SENDING, FAILED, STOPPED, WAITING, HELD, CUT = range(7)
SETTLED = 8  # the first code of the settled states: one per outcome, in the order of `Outcome`

_OPEN = frozenset(range(SETTLED))
_OUTCOMES = {outcome: SETTLED + place for place, outcome in enumerate(Outcome)}


_NO_ITEMS = frozenset[int]()  # shared, to make the construction of a delivery cheaper


class Rule(NamedTuple):
    """One state: the verdict of an item in it, and the states from which it can be entered."""

    verdict: Outcome
    follows: frozenset[int]


TABLE: dict[int, Rule] = {
    FRESH: Rule(Outcome.UNSENT, frozenset()),
    SENDING: Rule(Outcome.UNKNOWN, _OPEN),  # at the destination
    FAILED: Rule(Outcome.REJECTED, _OPEN),  # its last write has ended with an error
    STOPPED: Rule(Outcome.UNSENT, _OPEN),  # as FAILED, but the error says that it was not sent
    WAITING: Rule(Outcome.UNSENT, _OPEN),  # in a backoff
    HELD: Rule(Outcome.UNSENT, _OPEN),  # waits while other parts of its write are sent
    CUT: Rule(Outcome.UNKNOWN, _OPEN),  # its write was cancelled
    **{code: Rule(outcome, _OPEN) for outcome, code in _OUTCOMES.items()},
}
_NEXT = {
    code: bytes(code if before in rule.follows else before for before in range(256))
    for code, rule in TABLE.items()
}
"""For each state to enter, the next state by current state, as a table for `translate`."""
_ONE = {code: bytes((code,)) for code in TABLE}
_FORKED = {Outcome.UNSENT: WAITING, Outcome.REJECTED: FAILED, Outcome.UNKNOWN: CUT}
"""The state in which a fork leaves an unsettled item, by the verdict of its branches."""


class ItemStates:
    """The state of each item, and the items that earlier attempts and branches may have applied."""

    __slots__ = ("_codes", "contradictions", "is_fresh", "left", "maybe", "partly")

    def __init__(self, size: int) -> None:
        self._codes = bytearray(size)
        self.is_fresh = True  # whether no item has an outcome
        self.left = size  # items without an outcome
        self.contradictions = 0  # items settled again with another outcome
        self.maybe: set[int] | frozenset[int] = _NO_ITEMS
        """Items with an earlier attempt of unknown outcome."""
        self.partly: set[int] | frozenset[int] = _NO_ITEMS
        """Items applied on one of several branches, but not successful as a whole."""

    def __len__(self) -> int:
        return len(self._codes)

    def is_settled(self, index: int) -> bool:
        return self._codes[index] >= SETTLED

    def is_held(self, index: int) -> bool:
        return self._codes[index] == HELD

    def sent(self, indices: Iterable[int]) -> list[int]:
        codes = self._codes
        if codes.count(SENDING) == len(codes):
            return list(indices)
        return [index for index in indices if codes[index] == SENDING]

    def unsettled(self) -> list[int]:
        return [index for index, code in enumerate(self._codes) if code < SETTLED]

    def unsettled_among(self, indices: Iterable[int]) -> list[int]:
        """Return the places (from 0) of the unsettled items among these."""
        codes = self._codes
        return [place for place, index in enumerate(indices) if codes[index] < SETTLED]

    def move(self, indices: Collection[int], code: int) -> None:
        """Move the unsettled ones of these items, each given once, to the state `code`."""
        codes = self._codes
        if len(indices) == len(codes):
            codes[:] = _ONE[code] * len(codes) if self.is_fresh else codes.translate(_NEXT[code])
            return
        after = _NEXT[code]
        for index in indices:
            codes[index] = after[codes[index]]

    def fail(self, errors: Mapping[int, BaseException], each: Collection[BaseException]) -> None:
        """Move items to the states that follow from their errors; `each` lists each error once."""
        self.move(errors, FAILED)
        if of_stop := [error for error in each if isinstance(error, StoppedError)]:
            self.move(indices_of(of_stop, errors), STOPPED)
        if unknown := [error for error in each if isinstance(error, UnknownOutcomeError)]:
            self.doubt(indices_of(unknown, errors))
        if self.maybe and (sure := [error for error in each if isinstance(error, KeyRepeated)]):
            self.maybe = set(self.maybe).difference(indices_of(sure, errors))

    def cut(self, indices: Iterable[int]) -> None:
        """Move items at the destination to `CUT`: they may have been applied."""
        sent = self.sent(indices)
        self.move(sent, CUT)
        self.doubt(sent)

    def doubt(self, indices: Iterable[int]) -> None:
        """Mark items that an earlier attempt may have applied."""
        if isinstance(self.maybe, set):
            self.maybe.update(indices)
        else:
            self.maybe = set(indices)

    def leave_fork(self, index: int, verdict: Outcome, *, partly: bool) -> None:
        """Record the branches' verdict on an unsettled item."""
        code = _FORKED.get(verdict)
        if code is not None:
            self.move((index,), code)
        if verdict is Outcome.UNKNOWN:
            self.doubt((index,))
        if partly:
            if isinstance(self.partly, set):
                self.partly.add(index)
            else:
                self.partly = {index}

    def settle(self, indices: Sequence[int], outcome: Outcome) -> Sequence[int]:
        """Settle the unsettled ones of these items; return them."""
        codes, code = self._codes, _OUTCOMES[outcome]
        if not self.is_fresh:
            self.contradictions += sum(SETTLED <= codes[i] != code for i in indices)
            indices = [i for i in indices if codes[i] < SETTLED]
        if len(indices) == len(codes):
            codes[:] = _ONE[code] * len(codes)
        else:
            for index in indices:
                codes[index] = code
        if indices:
            self.is_fresh = False
            self.left -= len(indices)
        return indices

    def reopen(self, indices: Sequence[int], *, doubtful: bool) -> None:
        """Make settled items unsettled: fresh, or perhaps applied if `doubtful`."""
        for index in indices:
            self._codes[index] = CUT if doubtful else FRESH
        self.left += len(indices)
        self.is_fresh = self.left == len(self._codes)
        if doubtful:
            self.doubt(indices)

    def verdict(self, index: int, forked: Outcome | None = None) -> Outcome:
        """Return the item's outcome, or its verdict; `forked` is the verdict of its branches."""
        code = self._codes[index]
        answer = TABLE[code].verdict
        if code >= SETTLED:
            return answer
        return self._doubted(index, answer if forked is None else forked)

    def ended(self, index: int, error: BaseException) -> Outcome:
        return self._doubted(index, outcome_of(error, maybe_applied=index in self.maybe))

    def _doubted(self, index: int, outcome: Outcome) -> Outcome:
        """Return `outcome`, or unknown if an earlier attempt or a branch contradicts it."""
        if index in self.partly and outcome is Outcome.UNSENT:
            return Outcome.UNKNOWN
        return Outcome.UNKNOWN if index in self.maybe and not outcome.is_safe else outcome


def indices_of(
    some: Collection[BaseException], errors: Mapping[int, BaseException]
) -> Collection[int]:
    """Return the indices of the items that failed with one of these objects."""
    wanted = {id(error) for error in some}
    return [index for index, error in errors.items() if id(error) in wanted]
