"""The retry policy of a transaction, and of other work that fails as a whole.

An unknown outcome is retried: the ledger shows whether the transaction was applied. A refusal is
not: no later attempt succeeds before an operator has repaired the destination, and a job that fails
immediately shows the error.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..._core.classify import classified
from ..._core.errors import ErrorClass, RefusedError, TransactionLost
from ..._core.retry_policy import Backoff, RetryPolicy, RetryState

if TYPE_CHECKING:
    from ..._core.classify import Classifier

ATTEMPTS = 5
"""Maximum number of attempts; those that find the destination unavailable are not counted."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds."""


def transaction_retries(classify: Classifier | None, patience: float) -> RetryState:
    """Return the retries of one transaction, with at most `patience` seconds of waits in total."""
    policy = RetryPolicy(
        attempts=ATTEMPTS,
        unlisted_attempts=1,
        give_up_after=patience,
        backoff=Backoff(base=FIRST_WAIT, longest=LONGEST_WAIT, jitter="none"),
        final=frozenset({ErrorClass.PERMANENT, ErrorClass.STOPPED, ErrorClass.REFUSED}),
        uncounted=frozenset({ErrorClass.UNAVAILABLE}),
    )
    return RetryState(policy, partial(_class_of, classify))


def _class_of(classify: Classifier | None, error: BaseException) -> ErrorClass:
    is_lost = isinstance(error, TransactionLost) and not isinstance(error.__cause__, RefusedError)
    return ErrorClass.TRANSIENT if is_lost else classified(error, classify)
