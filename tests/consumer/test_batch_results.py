"""The results of a batch handler, as one result per message.

White box: the reading of one answer.
"""

from __future__ import annotations

import pytest

from sluicegate import Nak, Terminate, TransientError
from sluicegate.consumer import BatchResultCountError
from sluicegate.consumer.handling.batches import results_of
from sluicegate.consumer.handling.results import ACK

NAK = Nak()


def test_none_acknowledges_all() -> None:
    """consumer/C:Ba1."""
    assert results_of(None, 2, "terminate") == ([ACK, ACK], None)


@pytest.mark.parametrize("kind", [list, tuple])
def test_results_are_taken_by_position(kind: type[list[object]]) -> None:
    """O-T11, consumer/O10, consumer/C:Ba1: from a list or a tuple."""
    given = kind([None, NAK, Terminate()])
    assert list(results_of(given, 3, "terminate").results) == [None, NAK, Terminate()]


def test_messages_without_a_result_are_poison() -> None:
    """O-T12, consumer/O11."""
    results, error = results_of([None], 3, "terminate")
    assert isinstance(error, BatchResultCountError)
    assert results == [None, Terminate(error=error), Terminate(error=error)]
    assert "1 results for 3 messages" in str(error)


def test_superfluous_results_are_ignored() -> None:
    """O-T12, consumer/O12."""
    results, error = results_of([None, NAK, None, None, None], 3, "terminate")
    assert results == [None, NAK, None]
    assert isinstance(error, BatchResultCountError)


@pytest.mark.parametrize("returned", [0, True, "ab", {1: 2}, {1, 2}, ACK, iter([None, None])])
def test_what_is_no_list_makes_all_poison(returned: object) -> None:
    """O-T12: also a single result, which cannot apply to several messages."""
    results, error = results_of(returned, 2, "terminate")
    assert isinstance(error, BatchResultCountError)
    assert results == [Terminate(error=error)] * 2


@pytest.mark.parametrize("returned", [[None], 17])
def test_with_retry_a_message_without_a_result_has_failed(returned: object) -> None:
    """consumer/C:Ba1: one mistake of the handler is no reason to give up a message."""
    results, error = results_of(returned, 2, "retry")
    last = results[-1]
    assert isinstance(last, Nak)
    assert isinstance(last.error, TransientError)
    assert str(last.error) == str(error)
