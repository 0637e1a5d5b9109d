"""Decisions by cohorts of items are equal to decisions item by item.

White box: the series without a retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Backoff, ErrorClass, Outcome, Retry, RetryPolicy, RowBatch, WriteResult
from sluicegate import send as send_to
from sluicegate.errors import ResultMismatch, StoppedError
from sluicegate.retry.series import RetrySeries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sluicegate import Batch
    from sluicegate.testing import FakeClock

SIZE = 8
KINDS = tuple(ErrorClass)


class KindError(Exception):
    """An error with its own class; all are equal."""

    def __init__(self, kind: ErrorClass) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KindError)

    __hash__ = None  # type: ignore[assignment]


class MismatchedError(KindError, ResultMismatch):
    pass


def kind_of(error: BaseException) -> ErrorClass:
    assert isinstance(error, KindError)
    return error.kind


class ByItem:
    """The rules of a series, one item after the other."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self.pending = list(range(SIZE))
        self.final: dict[int, BaseException | type[StoppedError]] = {}
        self.attempts: dict[int, int] = {}

    def after(
        self,
        errors: Mapping[int, KindError],
        sent: Sequence[int],
        leaders: Mapping[int, int],
        *,
        last: bool,
        early: bool,
    ) -> set[ErrorClass]:
        stays: set[int] = set()
        classes: set[ErrorClass] = set()
        for index, error in sorted(errors.items()):
            kind = error.kind
            if index in leaders:
                if leaders[index] in stays:
                    stays.add(index)
                else:
                    self.final[index] = error
                continue
            is_excused = kind is ErrorClass.DEADLOCK and len(sent) > 1
            if kind not in self.policy.uncounted and not early and not is_excused:
                self.attempts[index] = self.attempts.get(index, 0) + 1
            is_over = self.policy.is_over(kind, self.attempts.get(index, 0))
            if isinstance(error, ResultMismatch) or is_over:
                self.final[index] = error
            elif last:
                self.final[index] = error if kind is ErrorClass.UNKNOWN else StoppedError
            else:
                stays.add(index)
                classes.add(kind)
        self.pending = [i for i in self.pending if i in stays or i not in sent]
        return classes


@dataclass
class Try:
    shared: bool
    """One error for all items."""
    codes: list[int]
    """Per item: no error, or one of the errors of this attempt."""
    kinds: list[ErrorClass]
    mismatches: bool
    sends: list[bool] | None
    leads: bool
    last: bool
    early: bool


TRIES = st.builds(
    Try,
    shared=st.booleans(),
    codes=st.lists(st.integers(-1, 4), min_size=SIZE, max_size=SIZE),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    mismatches=st.integers(0, 9).map(lambda number: number == 0),
    sends=st.none() | st.lists(st.booleans(), min_size=SIZE, max_size=SIZE),
    leads=st.booleans(),
    last=st.integers(0, 9).map(lambda number: number == 0),
    early=st.integers(0, 4).map(lambda number: number == 0),
)


@given(
    st.lists(TRIES, max_size=8),
    st.builds(
        RetryPolicy,
        attempts=st.integers(1, 4),
        unlisted_attempts=st.integers(1, 3),
        resend_unknown=st.booleans(),
    ),
)
def test_a_series_decides_as_one_that_looks_at_each_item(
    tries: list[Try], policy: RetryPolicy
) -> None:
    series, model = RetrySeries(range(SIZE), policy, 0.0), ByItem(policy)
    for each in tries:
        sent = [i for i in series.pending if each.sends is None or each.sends[i]]
        kind = MismatchedError if each.mismatches else KindError
        known = [kind(error_class) for error_class in each.kinds]
        errors = {i: known[0 if each.shared else each.codes[i]] for i in sent if each.codes[i] >= 0}
        if not errors:
            continue
        leaders = dict.fromkeys(list(errors)[1::2], min(errors)) if each.leads else {}
        series.times.schedule(1.0, not_before=0.0)
        series.times.resumed(0.0 if each.early else 1.0)
        classes = series.after(errors, kind_of, last=each.last, leaders=leaders, sent=sent)
        assert classes == model.after(errors, sent, leaders, last=each.last, early=each.early)
        assert list(series.pending) == model.pending
        for index, error in model.final.items():
            if isinstance(error, type):
                assert isinstance(series.final[index], error)
            else:
                assert series.final[index] is error
        assert series.final.keys() == model.final.keys()


class Failing:
    """Fails with these errors in turn, then succeeds."""

    def __init__(self, *answers: dict[int, BaseException]) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[int, ...]] = []

    async def write(self, batch: Batch[int]) -> WriteResult | None:
        self.sent.append(tuple(batch))
        if not self.answers:
            return None
        errors = self.answers.pop(0)
        return WriteResult.failed(batch, {i: errors[x] for i, x in enumerate(batch) if x in errors})


def no_waits(**options: Any) -> Retry:
    return Retry(backoff=Backoff(base=0.0), **options)


async def test_an_exception_shared_by_many_items_is_classified_once_per_try(
    fake_clock: FakeClock,
) -> None:
    asked: list[BaseException] = []

    def classify(error: BaseException) -> ErrorClass:
        asked.append(error)
        return ErrorClass.TRANSIENT

    shared, own = ValueError("no"), ValueError("no")
    failing = Failing({**dict.fromkeys(range(500), shared), 7: own, 9: own}, {7: own})
    assert not await send_to(no_waits(classify=classify)(failing), RowBatch(range(500)))
    assert [id(error) for error in asked] == [id(shared), id(own), id(own)]
    assert [len(each) for each in failing.sent] == [500, 500, 1]


async def test_a_deadlock_uses_no_attempt_and_halves_the_batch_until_an_item_is_alone(
    fake_clock: FakeClock,
) -> None:
    """From the third deadlock in a row; the order of the items stays."""
    deadlock = KindError(ErrorClass.DEADLOCK)
    every: dict[int, BaseException] = dict.fromkeys(range(4), deadlock)
    failing = Failing(every, every, every, every, every, {}, {}, every)
    batch = RowBatch(range(4))
    errors = await send_to(no_waits(classify=kind_of, attempts=2)(failing), batch)
    assert failing.sent == [
        *[(0, 1, 2, 3)] * 3,
        (0, 1),
        (0,),
        (0,),
        (1,),
        (2,),
        (2,),
        (3,),
    ]
    assert not errors

    failing = Failing(*[every] * 9)
    errors = await send_to(no_waits(classify=kind_of, attempts=2)(failing), RowBatch(range(2)))
    assert failing.sent == [*[(0, 1)] * 3, (0,), (0,), (1,), (1,)]
    assert errors == dict.fromkeys(range(2), deadlock)


async def test_equal_exceptions_of_two_classes_are_two_decisions(fake_clock: FakeClock) -> None:
    transient, permanent = KindError(ErrorClass.TRANSIENT), KindError(ErrorClass.PERMANENT)
    assert transient == permanent
    failing = Failing({0: transient, 1: permanent, 2: transient})
    batch = RowBatch(range(4))
    errors = await send_to(no_waits(classify=kind_of)(failing), batch)
    assert list(errors) == [1]
    assert errors[1] is permanent
    assert failing.sent == [(0, 1, 2, 3), (0, 2)]
    assert batch.delivery.verdicts(range(4)) == {Outcome.DELIVERED: 3, Outcome.REJECTED: 1}


def test_items_that_shared_their_first_errors_count_their_attempts_apart_later() -> None:
    """Two attempts fail as a whole, the third for some items: these have used three attempts, the
    others no more.
    """
    shared, throttle = KindError(ErrorClass.TRANSIENT), KindError(ErrorClass.UNAVAILABLE)
    whole = dict.fromkeys(range(4), shared)
    series = RetrySeries(range(4), RetryPolicy(attempts=4), 0.0)
    series.after(whole, kind_of, last=False)
    series.after(whole, kind_of, last=False)
    series.after({0: shared, 1: throttle, 2: shared, 3: throttle}, kind_of, last=False)
    series.after(whole, kind_of, last=False)
    assert list(series.pending) == [1, 3]
    assert list(series.final) == [0, 2]
    series.after({1: shared, 3: shared}, kind_of, last=False)
    assert not series.pending
