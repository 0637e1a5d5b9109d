"""The classes of Kafka errors, by the broker's code or the client's exception. Loads no client.

1. aiokafka and librdkafka report a broker's response under the number of Kafka's protocol; negative
   numbers below -1 are librdkafka's own. One table therefore serves both.
2. The class is that of a write. An error after which a batch may nevertheless be in the log is
   unknown: no response, a lost connection, a leader that may have stored it before it lost
   leadership. An error of which the client says that nothing was sent is unavailable.
3. A topic, login, permission or setting that every write needs is refused until it is repaired.
4. The code -1, and a code above those that the protocol had when the table was written, say nothing
   about the batch: unknown. Any other code without an entry is permanent.
"""

from __future__ import annotations

import sys
from typing import Any

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
    24: _R,  # INVALID_GROUP_ID
    25: _T,  # UNKNOWN_MEMBER_ID
    26: _R,  # INVALID_SESSION_TIMEOUT
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
    **dict.fromkeys(range(61, 67), _R),  # delegation tokens
    70: _T,  # FETCH_SESSION_ID_NOT_FOUND
    71: _T,  # INVALID_FETCH_SESSION_EPOCH
    72: _U,  # LISTENER_NOT_FOUND
    74: _U,  # FENCED_LEADER_EPOCH
    75: _U,  # UNKNOWN_LEADER_EPOCH
    76: _R,  # UNSUPPORTED_COMPRESSION_TYPE
    77: _U,  # STALE_BROKER_EPOCH
    78: _U,  # OFFSET_NOT_AVAILABLE
    79: _T,  # MEMBER_ID_REQUIRED
    80: _U,  # PREFERRED_LEADER_NOT_AVAILABLE
    81: _R,  # GROUP_MAX_SIZE_REACHED
    82: _R,  # FENCED_INSTANCE_ID
    83: _U,  # ELIGIBLE_LEADERS_NOT_AVAILABLE
    88: _U,  # UNSTABLE_OFFSET_COMMIT
    89: _H,  # THROTTLING_QUOTA_EXCEEDED
    90: _T,  # PRODUCER_FENCED
    93: _R,  # UNACCEPTABLE_CREDENTIAL
    97: _R,  # PRINCIPAL_DESERIALIZATION_FAILURE
    100: _R,  # UNKNOWN_TOPIC_ID
    103: _U,  # INCONSISTENT_TOPIC_ID
    110: _T,  # FENCED_MEMBER_EPOCH
    111: _R,  # UNRELEASED_INSTANCE_ID
    112: _R,  # UNSUPPORTED_ASSIGNOR
    113: _T,  # STALE_MEMBER_EPOCH
    120: _T,  # TRANSACTION_ABORTABLE
    129: _U,  # REBOOTSTRAP_REQUIRED
    # -- librdkafka's own
    -137: _U,  # _DESTROY_BROKER
    -142: _T,  # _ASSIGNMENT_LOST
    -144: _R,  # _FENCED: fatal for this producer or member
    -145: _R,  # _NOT_CONFIGURED
    -146: _U,  # _UNKNOWN_BROKER
    -147: _T,  # _MAX_POLL_EXCEEDED
    -148: _X,  # _GAPLESS_GUARANTEE
    -150: _R,  # _FATAL: this producer accepts nothing more
    -151: _X,  # _PURGE_INFLIGHT
    -152: _T,  # _PURGE_QUEUE
    -153: _T,  # _RETRY
    -155: _X,  # _UNDERFLOW: a response that cannot be read
    -163: _T,  # _INTR
    -164: _U,  # _WAIT_CACHE
    -165: _R,  # _UNSUPPORTED_FEATURE
    -166: _U,  # _TIMED_OUT_QUEUE: before it was sent
    -167: _T,  # _OUTDATED
    -169: _R,  # _AUTHENTICATION
    -173: _T,  # _CONFLICT
    -177: _T,  # _PREV_IN_PROGRESS
    -178: _T,  # _IN_PROGRESS
    -179: _R,  # _UNKNOWN_GROUP
    -180: _U,  # _WAIT_COORD
    -181: _R,  # _SSL
    -182: _U,  # _NODE_UPDATE
    -183: _U,  # _ISR_INSUFF
    -184: _H,  # _QUEUE_FULL: the producer's own queue; not accepted
    -185: _X,  # _TIMED_OUT
    -187: _U,  # _ALL_BROKERS_DOWN
    -188: _R,  # _UNKNOWN_TOPIC
    -190: _R,  # _UNKNOWN_PARTITION
    -192: _X,  # _MSG_TIMED_OUT
    -193: _U,  # _RESOLVE
    -194: _U,  # _CRIT_SYS_RESOURCE
    -195: _X,  # _TRANSPORT
    -197: _T,  # _DESTROY
    -199: _X,  # _BAD_MSG: a response that cannot be read
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
_QUEUE_FULL = "Queue full"
"""The message of the `BufferError` that librdkafka's producer raises in place of `_QUEUE_FULL`."""


def classify_kafka(error: BaseException) -> ErrorClass | None:
    """Classify an error of aiokafka or confluent-kafka (librdkafka); `None` for any other error.

    A missing topic, a refused login or permission and a setting that the broker does not accept are
    `REFUSED`. A missing leader, coordinator or replica is `UNAVAILABLE`: not stored. A quota, and
    librdkafka's full queue, are `THROTTLE`. A broken connection, a timeout and a leader that
    changed are `UNKNOWN`: the records may be stored. A record that is too large or invalid is
    `PERMANENT`.

    Looks through `__cause__`, and takes a `KafkaException(error)` around the `KafkaError` that a
    delivery callback of confluent-kafka receives. Errors of Sluicegate keep their own class. Does
    not suspend, and imports no client.
    """
    return classified_by_cause(error, _class_of)


def class_of_code(code: int) -> ErrorClass:
    """Return the class of a broker's response, or of a librdkafka error, by its code."""
    return _CODES.get(code) or (_X if code > _LAST_CODE else _P)


def _class_of(error: BaseException) -> ErrorClass | None:
    code = _librdkafka_code(error)
    if code is not None:
        return class_of_code(code)
    if isinstance(error, BufferError):
        return _H if _QUEUE_FULL in str(error) else None
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


def _librdkafka_code(error: BaseException) -> int | None:
    client: Any = sys.modules.get("confluent_kafka")  # optional; loaded if the error is its own
    if client is None or not error.args:
        return None
    found: Any = error.args[0]
    if not isinstance(found, client.KafkaError):
        return None
    code: int = found.code()
    return code
