"""The states of a batch's items, their verdicts, their errors and failed attempts.

A settled item changes only if its transaction is rolled back; any other item may enter every
state. Items that fail together usually share one error and one history of attempts,
so both are processed once per object, not per item.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Literal

from ..errors import KeyRepeated, StoppedError, UnknownOutcomeError
from ..outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


FRESH, SENDING, FAILED, STOPPED, WAITING, HELD, CUT = range(7)
SETTLED = 8  # the first code of the settled states: one per outcome, in the order of `Outcome`

_OUTCOMES = {outcome: SETTLED + place for place, outcome in enumerate(Outcome)}


_NO_ITEMS = frozenset[int]()  # shared, to make the construction of a delivery cheaper

_FORKED = {Outcome.UNSENT: WAITING, Outcome.REJECTED: FAILED, Outcome.UNKNOWN: CUT}
"""The state in which a fork leaves an unsettled item, by the verdict of its branches."""


VERDICTS = {
    FRESH: Outcome.UNSENT,
    SENDING: Outcome.UNKNOWN,  # at the destination
    FAILED: Outcome.REJECTED,  # its last write has ended with an error
    STOPPED: Outcome.UNSENT,  # as FAILED, but the error says that it was not sent
    WAITING: Outcome.UNSENT,  # in a backoff
    HELD: Outcome.UNSENT,  # waits while other parts of its write are sent
    CUT: Outcome.UNKNOWN,  # its write was cancelled
    **{code: outcome for outcome, code in _OUTCOMES.items()},
}
"""The verdict of an item in each state."""
_NEXT = {
    code: bytes(code if before < SETTLED else before for before in range(256)) for code in VERDICTS
}
"""For each state to enter, the next state by current state, as a table for `translate`."""
_ONE = {code: bytes((code,)) for code in VERDICTS}


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

    @property
    def are_waiting(self) -> bool:
        """Whether every item without an outcome waits in a backoff."""
        return self._codes.count(WAITING) == self.left

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
        answer = VERDICTS[code]
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


def outcome_of(error: BaseException, *, maybe_applied: bool) -> Outcome:
    """Return the outcome of an item whose last attempt failed with `error`."""
    if maybe_applied or isinstance(error, UnknownOutcomeError):
        return Outcome.UNKNOWN
    return Outcome.UNSENT if isinstance(error, StoppedError) else Outcome.REJECTED


RetryEnd = Literal["exhausted", "given_up"]
"""Why retries have ended without success: their attempts or their time were used up, or the caller
asked to give up an outage (`give_up_after=`, `on_refused="dead_letter"`).
"""


@dataclass(frozen=True, slots=True)
class Tries:
    """The failed attempts of one item. Times are monotonic seconds of the clock."""

    count: int
    first_at: float
    last_at: float

    def and_one(self, now: float) -> Tries:
        return Tries(self.count + 1, self.first_at, now)


class Failures:
    """Errors and attempts of a delivery's failed items, by index; the ends of retries, by error."""

    __slots__ = ("_retry_ends", "errors", "tries")

    def __init__(self) -> None:
        self.errors: dict[int, BaseException] = {}
        """The error of each item's last write."""
        self.tries: dict[int, Tries] = {}
        self._retry_ends: dict[int, tuple[BaseException, RetryEnd]] = {}
        """By the id of an error, which is kept alive by its entry."""

    def forget_errors(self, indices: Iterable[int]) -> None:
        if self.errors:
            for index in indices:
                self.errors.pop(index, None)

    def count_try(self, indices: Sequence[int], now: float) -> None:
        """Count an ended attempt for each of these items."""
        tries = self.tries
        before = list(map(tries.get, indices))
        shared = before[0] if before else None
        if all(map(is_, before, repeat(shared))):  # a loop in C
            one = Tries(1, now, now) if shared is None else shared.and_one(now)
            tries.update(dict.fromkeys(indices, one))
            return
        first = Tries(1, now, now)
        for index, own in zip(indices, before, strict=True):
            tries[index] = first if own is None else own.and_one(now)

    def take_over(self, index: int, tries: Tries | None) -> None:
        """Take over an item's attempts on a branch, if there were more."""
        own = self.tries.get(index)
        if tries is not None and (own is None or tries.count > own.count):
            self.tries[index] = tries

    def end_retries(self, ends: Iterable[tuple[BaseException, RetryEnd]]) -> None:
        """Record the errors with which items have left a retry, and why."""
        self._retry_ends.update({id(error): (error, end) for error, end in ends})

    def retry_end(self, error: BaseException) -> RetryEnd | None:
        """Return why retries have ended with this error; `None` if none have."""
        known = self._retry_ends.get(id(error))
        return None if known is None else known[1]
