"""The classes of Kafka errors, by the broker's code or aiokafka's exception. Loads no client.

1. aiokafka reports a broker's response under the number of Kafka's protocol.
2. The class is that of a write. An error after which a batch may nevertheless be in the log is
   unknown: no response, a lost connection, a leader that may have stored it before it lost
   leadership. An error of which the client says that nothing was sent is unavailable.
3. A topic, login, permission or setting that every write needs is refused until it is repaired.
4. A code that no producer receives has no entry. The code -1, and a code above those that the
   protocol had when the table was written, say nothing about the batch: unknown. Any other code
   without an entry is permanent.
"""

from __future__ import annotations

from .._core.classify import classified_by_cause
from .._core.errors import ErrorClass

_P, _T, _U = ErrorClass.PERMANENT, ErrorClass.TRANSIENT, ErrorClass.UNAVAILABLE
_R, _H, _X = ErrorClass.REFUSED, ErrorClass.THROTTLE, ErrorClass.UNKNOWN

_LAST_CODE = 133
"""The highest code of the protocol when this table was written."""

_CODES: dict[int, ErrorClass] = {
    -1: _X,  # UNKNOWN_SERVER_ERROR
    2: _T,  # CORRUPT_MESSAGE: damaged on its way
    3: _R,  # UNKNOWN_TOPIC_OR_PARTITION
    5: _U,  # LEADER_NOT_AVAILABLE
    6: _X,  # NOT_LEADER_OR_FOLLOWER: also of a leader that has stored it and lost leadership
    7: _X,  # REQUEST_TIMED_OUT
    8: _U,  # BROKER_NOT_AVAILABLE
    9: _U,  # REPLICA_NOT_AVAILABLE
    13: _X,  # NETWORK_EXCEPTION: disconnected before the response
    14: _U,  # COORDINATOR_LOAD_IN_PROGRESS
    15: _U,  # COORDINATOR_NOT_AVAILABLE
    16: _U,  # NOT_COORDINATOR
    17: _R,  # INVALID_TOPIC_EXCEPTION
    19: _U,  # NOT_ENOUGH_REPLICAS: not stored
    20: _X,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
    21: _R,  # INVALID_REQUIRED_ACKS
    22: _T,  # ILLEGAL_GENERATION: a rebalance; the records of the commit are delivered again
    23: _R,  # INCONSISTENT_GROUP_PROTOCOL
    25: _T,  # UNKNOWN_MEMBER_ID
    27: _T,  # REBALANCE_IN_PROGRESS
    29: _R,  # TOPIC_AUTHORIZATION_FAILED
    30: _R,  # GROUP_AUTHORIZATION_FAILED
    31: _R,  # CLUSTER_AUTHORIZATION_FAILED
    33: _R,  # UNSUPPORTED_SASL_MECHANISM
    34: _R,  # ILLEGAL_SASL_STATE
    35: _R,  # UNSUPPORTED_VERSION
    41: _U,  # NOT_CONTROLLER
    43: _R,  # UNSUPPORTED_FOR_MESSAGE_FORMAT
    44: _R,  # POLICY_VIOLATION
    45: _T,  # OUT_OF_ORDER_SEQUENCE_NUMBER: the broker has forgotten the producer
    46: _X,  # DUPLICATE_SEQUENCE_NUMBER: stored by an earlier attempt
    47: _T,  # INVALID_PRODUCER_EPOCH
    49: _T,  # INVALID_PRODUCER_ID_MAPPING
    50: _R,  # INVALID_TRANSACTION_TIMEOUT
    51: _U,  # CONCURRENT_TRANSACTIONS
    52: _U,  # TRANSACTION_COORDINATOR_FENCED
    53: _R,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    54: _R,  # SECURITY_DISABLED
    55: _T,  # OPERATION_NOT_ATTEMPTED
    56: _X,  # KAFKA_STORAGE_ERROR
    58: _R,  # SASL_AUTHENTICATION_FAILED
    59: _T,  # UNKNOWN_PRODUCER_ID
    60: _U,  # REASSIGNMENT_IN_PROGRESS
    72: _U,  # LISTENER_NOT_FOUND
    74: _U,  # FENCED_LEADER_EPOCH
    75: _U,  # UNKNOWN_LEADER_EPOCH
    76: _R,  # UNSUPPORTED_COMPRESSION_TYPE
    88: _U,  # UNSTABLE_OFFSET_COMMIT
    89: _H,  # THROTTLING_QUOTA_EXCEEDED
    90: _T,  # PRODUCER_FENCED
    100: _R,  # UNKNOWN_TOPIC_ID
    103: _U,  # INCONSISTENT_TOPIC_ID
    120: _T,  # TRANSACTION_ABORTABLE
    129: _U,  # REBOOTSTRAP_REQUIRED
}

_AIOKAFKA: dict[str, ErrorClass] = {
    "NoBrokersAvailable": _U,
    "NodeNotReadyError": _U,
    "KafkaUnavailableError": _U,
    "StaleMetadata": _U,
    "MetadataEmptyBrokerList": _U,
    "TooManyInFlightRequests": _T,
    "KafkaConnectionError": _X,
    "KafkaTimeoutError": _X,
    "KafkaProtocolError": _X,
    "Cancelled": _X,
    "QuotaViolationError": _H,
    "AuthenticationFailedError": _R,
    "AuthenticationMethodNotSupported": _R,
    "UnrecognizedBrokerVersion": _R,
    "IncompatibleBrokerVersion": _R,
    "KafkaConfigurationError": _R,
    "UnsupportedCodecError": _R,
    "ProducerFenced": _R,
    "RecordTooLargeError": _P,
    "NoOffsetForPartitionError": _P,
    "CommitFailedError": _T,
}
"""aiokafka's own errors, by class name."""
_NOT_SENT = ("Unable to bootstrap", "No connection to broker")
"""Messages of a `KafkaConnectionError` of aiokafka before anything was sent."""


def classify_kafka(error: BaseException) -> ErrorClass | None:
    """Classify an error of aiokafka; `None` for any other error.

    A missing topic, a refused login or permission and a setting that the broker does not accept are
    `REFUSED`. A missing leader, coordinator or replica is `UNAVAILABLE`: not stored. A quota is
    `THROTTLE`. A broken connection, a timeout and a leader that changed are `UNKNOWN`: the records
    may be stored. A record that is too large or invalid is `PERMANENT`.

    Looks through `__cause__`. Errors of Sluicegate keep their own class. Does not suspend, and
    imports no client.
    """
    return classified_by_cause(error, _class_of)


def class_of_code(code: int) -> ErrorClass:
    """Return the class of a broker's response, by its code."""
    return _CODES.get(code) or (_X if code > _LAST_CODE else _P)


def _class_of(error: BaseException) -> ErrorClass | None:
    for kind in type(error).__mro__:
        if kind.__module__ != "aiokafka.errors":
            continue
        if kind.__name__ == "BrokerResponseError":
            known = getattr(error, "errno", None)
            return class_of_code(known) if isinstance(known, int) else None
        if kind.__name__ == "KafkaConnectionError" and any(
            each in str(error) for each in _NOT_SENT
        ):
            return _U
        if kind.__name__ in _AIOKAFKA:
            return _AIOKAFKA[kind.__name__]
    return None
