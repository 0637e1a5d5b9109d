"""The prefix rule: which items stand behind a failed one.

White box: the rule, without a batcher.
"""

from __future__ import annotations

import pytest

from sluicegate import ErrorClass, Outcome, PermanentError, RetryPolicy, RowBatch, TransientError
from sluicegate._core.delivery.delivery import Delivery
from sluicegate._core.order.left_out import held_back, leaders
from sluicegate.errors import KeyStopped
from sluicegate.retry.series import RetrySeries

BAD = PermanentError("bad")
LATER = TransientError("later")


def batch(keys: str, *, keeps_prefix: bool = True) -> RowBatch[int]:
    delivery = Delivery(len(keys), keeps_prefix=keeps_prefix)
    return RowBatch(range(len(keys)), keys=list(keys), delivery=delivery)


def test_a_failed_item_stands_behind_the_first_failed_one_of_its_key() -> None:
    """consumer/C:Ba4."""
    assert leaders(batch("abaabb"), {0: BAD, 2: BAD, 3: BAD, 4: BAD}) == {2: 0, 3: 0}
    assert leaders(batch("abaabb"), {1: BAD, 3: BAD}) == {}


def test_the_rule_holds_only_where_a_batch_was_made_for_it() -> None:
    """consumer/C:Ba4: in a batch whose items are not resent by key, or without keys, errors stay as
    they are.
    """
    errors = {0: BAD, 1: BAD}
    assert leaders(batch("aa", keeps_prefix=False), errors) == {}
    assert leaders(RowBatch([1, 2]), errors) == {}
    assert held_back(batch("aa", keeps_prefix=False), errors) is errors


def test_who_stands_behind_is_not_at_fault() -> None:
    """consumer/C:Ba4: nor was it applied, if everything is cut now."""
    made = batch("aba")
    errors = held_back(made, {0: BAD, 1: LATER, 2: LATER})
    assert (errors[0], errors[1]) == (BAD, LATER)
    assert isinstance(errors[2], KeyStopped)
    assert errors[2].__cause__ is BAD
    assert made.delivery.verdict(2) is Outcome.UNSENT


@pytest.mark.parametrize(
    ("kind", "stays"), [(ErrorClass.TRANSIENT, True), (ErrorClass.PERMANENT, False)]
)
def test_who_stands_behind_is_tried_again_with_its_leader_or_leaves_with_it(
    kind: ErrorClass, *, stays: bool
) -> None:
    """consumer/C:Ba4: whatever its own error is; it uses up no attempt."""
    series = RetrySeries(range(3), RetryPolicy(attempts=2, unlisted_attempts=2), 0.0)

    def class_of(error: BaseException) -> ErrorClass:
        return kind if error is LATER else ErrorClass.PERMANENT

    series.after({0: LATER, 2: BAD}, class_of, last=False, leaders={2: 0})
    assert list(series.pending) == ([0, 2] if stays else [])
    assert set(series.final) == (set() if stays else {0, 2})
    if stays:
        series.after({2: LATER}, class_of, last=False)
        assert list(series.pending) == [2], "its first attempt of two"
