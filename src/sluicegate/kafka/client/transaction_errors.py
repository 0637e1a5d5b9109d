"""The meaning of refusals of a transaction, and the remedies for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiokafka import errors as kafka

from ..._core.classify import caused
from ..._core.errors import (
    ConfigError,
    ErrorClass,
    PositionLost,
    RefusedError,
    TransientError,
    UnavailableError,
)
from ..errors import class_of_code
from .coordinator import UNSTABLE_OFFSETS

if TYPE_CHECKING:
    from ..._core.errors import SluicegateError

_PRODUCER_FENCED = 90
FENCED = frozenset({kafka.InvalidProducerEpoch.errno, _PRODUCER_FENCED})
"""Another owner has claimed the transactional id, or the broker has ended the transaction."""
_UNFINISHED = {kafka.ConcurrentTransactions.errno, UNSTABLE_OFFSETS}


class Attempted(NamedTuple):
    """The attempted operation, as a verb with an object, and its names."""

    what: str
    transactional_id: str
    group: str

    def __str__(self) -> str:
        return f"cannot {self.what}, transactional id {self.transactional_id!r}"


def transaction_error(code: int, attempted: Attempted) -> SluicegateError:
    """Return the sink error for a broker's answer. Nothing was committed."""
    error = kafka.for_code(code)()
    why = f"{attempted} ({type(error).__name__})"
    if code in FENCED:
        text = f"{why}: another owner has claimed it, or transaction_timeout has passed"
        return caused(PositionLost(text), error)
    if code in _UNFINISHED:
        text = f"{why}: an earlier transaction is still being completed"
        return caused(UnavailableError(text), error)
    kind = class_of_code(code)
    if kind is ErrorClass.UNAVAILABLE or code == kafka.RequestTimedOutError.errno:
        return caused(UnavailableError(f"{why}: its coordinator is not available"), error)
    if code == kafka.InvalidTransactionTimeout.errno:
        rule = "use a smaller transaction_timeout, or raise the broker's transaction.max.timeout.ms"
        return ConfigError(f"{why}: {rule}")
    if kind is ErrorClass.REFUSED:
        return caused(RefusedError(why, repair=_repair(code, attempted)), error)
    return caused(TransientError(why), error)


def _repair(code: int, attempted: Attempted) -> str:
    if code == kafka.TransactionalIdAuthorizationFailed.errno:
        return "grant its user WRITE and DESCRIBE on the transactional id"
    if code == kafka.GroupAuthorizationFailedError.errno:
        return f"grant its user READ on the group {attempted.group!r}"
    if code == kafka.TopicAuthorizationFailedError.errno:
        return "grant its user READ on the source's topic, and WRITE on the sink's"
    if code == kafka.UnknownTopicOrPartitionError.errno:
        return "source and sink must be on one cluster, which stores the source's offsets"
    return "change the setting of the broker or the producer that the answer names"


def unanswered_error(error: Exception, attempted: Attempted) -> UnavailableError:
    """Return the error of a request without an answer."""
    return caused(UnavailableError(f"{attempted}: no answer ({type(error).__name__})"), error)
