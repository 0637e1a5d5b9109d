"""The effect of a failed transaction's error on the next attempt of its unit. White box: the retry
policy of a unit.
"""

from __future__ import annotations

import asyncpg
import pytest

from sluicegate import PermanentError, RefusedError, TransientError, UnavailableError
from sluicegate.errors import TransactionLost
from sluicegate.postgres.client.errors import classify_postgres
from sluicegate.spark.task.transaction import ATTEMPTS, transaction_retries


def lost(cause: BaseException) -> TransactionLost:
    error = TransactionLost("gone")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("no table", repair="create it"),
        lost(RefusedError("no table", repair="create it")),
        asyncpg.UndefinedTableError("no table"),
        asyncpg.InvalidPasswordError("no login"),
        PermanentError("bad"),
    ],
    ids=repr,
)
def test_a_refusal_is_not_tried_again(error: BaseException) -> None:
    """Only an operator can repair it, so the job fails at once."""
    assert transaction_retries(classify_postgres, patience=1000.0).wait_after(error) is None


@pytest.mark.parametrize(
    "error",
    [UnavailableError("starting"), lost(ConnectionResetError()), TransientError("deadlock")],
    ids=repr,
)
def test_what_may_pass_is_tried_again(error: BaseException) -> None:
    assert transaction_retries(classify_postgres, patience=1000.0).wait_after(error) is not None


def test_only_what_reached_the_destination_is_counted() -> None:
    retries = transaction_retries(classify_postgres, patience=1000.0)
    assert [retries.wait_after(UnavailableError("starting")) is None for _ in range(ATTEMPTS)] == [
        False
    ] * ATTEMPTS
    assert [retries.wait_after(TransientError("deadlock")) is None for _ in range(ATTEMPTS)] == [
        *[False] * (ATTEMPTS - 1),
        True,
    ]
