"""The meaning of a broker's responses to a producer: the result of a batch, and the error of a
transaction, with remedies for operators.

The table of `kafka.errors` determines the class of an error. A producer id that the broker has
forgotten is transient, with a new id.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from aiokafka import errors as kafka

from ..._core.classify import caused
from ..._core.errors import (
    ConfigError,
    ErrorClass,
    PermanentError,
    PositionLost,
    RefusedError,
    SinkError,
    ThrottledError,
    TooLargeError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
)
from ..errors import class_of_code
from .coordinator import UNSTABLE_OFFSETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..._core.errors import SluicegateError

_UNSUPPORTED_COMPRESSION = 76
_PRODUCER_FENCED = 90
_DUPLICATE = kafka.DuplicateSequenceNumber.errno
_TOO_LARGE = {kafka.MessageSizeTooLargeError.errno, kafka.RecordListTooLargeError.errno}
_FORGOTTEN = {
    kafka.OutOfOrderSequenceNumber.errno,
    kafka.InvalidProducerEpoch.errno,
    kafka.InvalidProducerIdMapping.errno,
    kafka.UnknownProducerId.errno,
    _PRODUCER_FENCED,
}
_REPAIRS = {
    kafka.TopicAuthorizationFailedError.errno: "grant its user WRITE and DESCRIBE on the topic",
    kafka.ClusterAuthorizationFailedError.errno: "grant its user IDEMPOTENT_WRITE on the cluster",
    kafka.InvalidTopicError.errno: "use a topic that producers may write to",
    kafka.UnknownTopicOrPartitionError.errno: "create the topic",
    kafka.TransactionalIdAuthorizationFailed.errno: "grant its user WRITE on the transactional id",
    kafka.InvalidRequiredAcksError.errno: "use a broker that supports acks=all",
    kafka.UnsupportedForMessageFormatError.errno: "raise the topic's message.format.version",
    kafka.UnsupportedVersionError.errno: "use a broker of Kafka 0.11 or later",
    kafka.PolicyViolationError.errno: "change what the broker's policy forbids",
    _UNSUPPORTED_COMPRESSION: "use another compression=, or allow this one on the topic",
}
_ANY_REPAIR = "change the setting of the broker, the topic or the sink that the answer names"
_NOT_STORED: dict[ErrorClass, type[SinkError]] = {
    ErrorClass.TRANSIENT: TransientError,
    ErrorClass.UNAVAILABLE: UnavailableError,
    ErrorClass.THROTTLE: ThrottledError,
}
PASSING = {kafka.UnknownTopicOrPartitionError.errno}
"""Refusals that may be temporary while the cluster changes; retried first."""
FENCED = frozenset({kafka.InvalidProducerEpoch.errno, _PRODUCER_FENCED})
"""Another owner has claimed the transactional id, or the broker has ended the transaction."""
_UNFINISHED = {kafka.ConcurrentTransactions.errno, UNSTABLE_OFFSETS}


@dataclass(frozen=True, slots=True)
class Stored:
    """The batch is in the log."""

    offset: int
    """The offset of the first record; -1 if the broker no longer knows it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The batch is not in the log, or it is unknown whether it is."""

    error: SinkError
    records: Mapping[int, str] = field(default_factory=dict[int, str])
    """The invalid records and the reasons, if the broker reports them."""
    may_pass: bool = False
    """Whether another attempt with newer metadata may succeed."""
    forgets: bool = False
    """Whether the broker has forgotten the producer id, so that a new one is needed."""

    @property
    def is_unknown(self) -> bool:
        """Whether the batch may nevertheless be in the log."""
        return isinstance(self.error, UnknownOutcomeError)


Produced = Stored | Failed


def result_of(
    code: int, place: str, offset: int, records: Mapping[int, str], told: str
) -> Produced:
    """Interpret a broker's answer; `place` is the partition, as text."""
    if code in {0, _DUPLICATE}:
        return Stored(offset)
    error = kafka.for_code(code)()
    why = f"{type(error).__name__}{f': {told}' if told else ''}"
    if code in _TOO_LARGE:
        text = f"{place} does not accept a batch of this size ({why}); see max.message.bytes"
        return Failed(caused(TooLargeError(text), error))
    kind = class_of_code(code)
    if kind is ErrorClass.PERMANENT:
        return Failed(caused(PermanentError(f"{place} refuses it ({why})"), error), records)
    if kind is ErrorClass.REFUSED:
        text = f"{place} refuses every record ({why})"
        refused = caused(RefusedError(text, repair=_REPAIRS.get(code, _ANY_REPAIR)), error)
        return Failed(refused, may_pass=code in PASSING)
    if code in _FORGOTTEN:
        text = f"{place} has forgotten this producer, or fenced it ({why}); nothing was stored"
        return Failed(caused(TransientError(text), error), forgets=True)
    if kind is ErrorClass.UNKNOWN:
        text = f"{place} may have stored it, or not ({why})"
        return Failed(caused(UnknownOutcomeError(text), error), may_pass=True)
    text = f"{place} has not stored it ({why})"
    return Failed(caused(_NOT_STORED[kind](text), error), may_pass=True)


def unsent_result(place: str, error: Exception | None) -> Failed:
    """Return the result of a batch that could not be sent to a broker."""
    made = UnavailableError(f"the leader of {place} cannot be reached")
    return Failed(made if error is None else caused(made, error), may_pass=True)


def unanswered_result(place: str, error: Exception) -> Failed:
    """Return the result of a batch that was sent without receiving an answer."""
    made = UnknownOutcomeError(f"{place} has not answered ({type(error).__name__})")
    return Failed(caused(made, error), may_pass=not isinstance(error, kafka.RequestTimedOutError))


def unknown_result(failed: Failed, place: str) -> Failed:
    """Return the result of a batch that was also sent before, without an answer.

    Unless its records are invalid, the refusal of the second attempt gives no information about the
    first.
    """
    if failed.is_unknown or isinstance(failed.error, PermanentError):
        return failed
    made = UnknownOutcomeError(f"{place} may have stored an earlier attempt ({failed.error})")
    return replace(failed, error=caused(made, failed.error))


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
