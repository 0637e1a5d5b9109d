"""The classes of the errors of aiokafka and redis-py: every class and code of each client, so that a
new one is noticed.

White box: the classes of errors, without a broker.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from aiokafka import errors as aiokafka
from confluent_kafka import KafkaError

from redis import exceptions as redis
from redis import sentinel
from sluicegate import ErrorClass, UnknownOutcomeError
from sluicegate._core.classify import classified
from sluicegate._core.errors import classify
from sluicegate.kafka import KafkaSink
from sluicegate.kafka.client.answers import Failed, result_of
from sluicegate.kafka.errors import class_of_code, classify_kafka
from sluicegate.redis import RedisSink
from sluicegate.redis.refusals import classify_redis

P, T, U = ErrorClass.PERMANENT, ErrorClass.TRANSIENT, ErrorClass.UNAVAILABLE
R, H, X = ErrorClass.REFUSED, ErrorClass.THROTTLE, ErrorClass.UNKNOWN

CODES = {
    P: "INVALID_GROUP_ID INVALID_SESSION_TIMEOUT FETCH_SESSION_ID_NOT_FOUND "
    "INVALID_FETCH_SESSION_EPOCH STALE_BROKER_EPOCH OFFSET_NOT_AVAILABLE MEMBER_ID_REQUIRED "
    "PREFERRED_LEADER_NOT_AVAILABLE GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID "
    "ELIGIBLE_LEADERS_NOT_AVAILABLE UNACCEPTABLE_CREDENTIAL PRINCIPAL_DESERIALIZATION_FAILURE "
    "FENCED_MEMBER_EPOCH UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH "
    "DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND "
    "DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED "
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED "
    "OFFSET_OUT_OF_RANGE INVALID_MSG_SIZE MSG_SIZE_TOO_LARGE STALE_CTRL_EPOCH OFFSET_METADATA_TOO_LARGE "
    "RECORD_LIST_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE INVALID_TIMESTAMP TOPIC_ALREADY_EXISTS "
    "INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG "
    "INVALID_REQUEST INVALID_TXN_STATE LOG_DIR_NOT_FOUND INVALID_PRINCIPAL_TYPE NON_EMPTY_GROUP "
    "GROUP_ID_NOT_FOUND TOPIC_DELETION_DISABLED ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS "
    "GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD RESOURCE_NOT_FOUND DUPLICATE_RESOURCE "
    "INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED MISMATCHED_ENDPOINT_TYPE "
    "UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE "
    "INVALID_REGISTRATION INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH "
    "FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER VOTER_NOT_FOUND "
    "INVALID_REGULAR_EXPRESSION STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH "
    "STREAMS_TOPOLOGY_FENCED SHARE_SESSION_LIMIT_REACHED "
    ""
    ""
    ""
    "",
    T: "INVALID_MSG ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS "
    "OUT_OF_ORDER_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING "
    "OPERATION_NOT_ATTEMPTED UNKNOWN_PRODUCER_ID "
    "PRODUCER_FENCED "
    "TRANSACTION_ABORTABLE "
    "",
    U: "LEADER_NOT_AVAILABLE BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS "
    "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR NOT_ENOUGH_REPLICAS NOT_CONTROLLER "
    "CONCURRENT_TRANSACTIONS TRANSACTION_COORDINATOR_FENCED REASSIGNMENT_IN_PROGRESS "
    "LISTENER_NOT_FOUND FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH "
    ""
    "UNSTABLE_OFFSET_COMMIT INCONSISTENT_TOPIC_ID REBOOTSTRAP_REQUIRED "
    ""
    "",
    R: "UNKNOWN_TOPIC_OR_PART TOPIC_EXCEPTION INVALID_REQUIRED_ACKS INCONSISTENT_GROUP_PROTOCOL "
    "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED "
    "CLUSTER_AUTHORIZATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE UNSUPPORTED_VERSION "
    "UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION INVALID_TRANSACTION_TIMEOUT "
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED SECURITY_DISABLED SASL_AUTHENTICATION_FAILED "
    ""
    ""
    "UNSUPPORTED_COMPRESSION_TYPE "
    "UNKNOWN_TOPIC_ID "
    ""
    "",
    H: "THROTTLING_QUOTA_EXCEEDED ",
    X: "UNKNOWN NOT_LEADER_FOR_PARTITION REQUEST_TIMED_OUT NETWORK_EXCEPTION "
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND DUPLICATE_SEQUENCE_NUMBER KAFKA_STORAGE_ERROR "
    "",
}
"""Kafka's codes by librdkafka's names."""
KAFKA = {name: kind for kind, names in CODES.items() for name in names.split()}


def around(error: BaseException) -> BaseException:
    made = RuntimeError("around it")
    made.__cause__ = error
    return made


def made(kind: type[BaseException]) -> BaseException:
    """An error without a message, whatever its constructor takes and its text needs."""
    try:
        return kind()
    except TypeError:
        error: Any = kind.__new__(kind)
        needed = {"description": "", "subject": "", "reply": "", "sid": 1, "sub": None}
        vars(error).update(needed, code=0, err_code=0)
        found: BaseException = error
        return found


def test_a_code_of_kafka_has_one_class() -> None:
    """B-T17, batcher/B25."""
    known = {
        name: value
        for name in dir(KafkaError)
        if name[0] != "_" and name.isupper() and isinstance(value := getattr(KafkaError, name), int)
    }
    assert known.keys() - {"NO_ERROR"} == KAFKA.keys()
    for name, kind in KAFKA.items():
        assert class_of_code(known[name]) is kind, name
    numbers = {value: KAFKA[name] for name, value in known.items() if name != "NO_ERROR"}
    for code, error_class in aiokafka.kafka_errors.items():
        if code:
            assert classify_kafka(error_class("told")) is numbers[code], error_class
            assert classify_kafka(around(error_class("told"))) is numbers[code], error_class


def test_the_sink_of_kafka_gives_an_answer_the_same_class() -> None:
    """B-T17: a duplicate sequence number is stored."""
    for name, kind in KAFKA.items():
        code = getattr(KafkaError, name)
        answer = result_of(code, "t-0", 0, {}, "")
        if code == aiokafka.DuplicateSequenceNumber.errno:
            assert not isinstance(answer, Failed)
        else:
            assert isinstance(answer, Failed)
            assert classify(answer.error) is kind, name
    assert class_of_code(9999) is X  # of a later version of the protocol


AIOKAFKA: dict[type[BaseException], ErrorClass | None] = {
    aiokafka.KafkaError: None,
    aiokafka.BrokerResponseError: None,
    aiokafka.IllegalStateError: None,
    aiokafka.IllegalArgumentError: None,
    aiokafka.NoBrokersAvailable: U,
    aiokafka.NodeNotReadyError: U,
    aiokafka.KafkaUnavailableError: U,
    aiokafka.StaleMetadata: U,
    aiokafka.MetadataEmptyBrokerList: U,
    aiokafka.TooManyInFlightRequests: T,
    aiokafka.KafkaConnectionError: X,
    aiokafka.KafkaTimeoutError: X,
    aiokafka.KafkaProtocolError: X,
    aiokafka.CorrelationIdError: X,
    aiokafka.Cancelled: X,
    aiokafka.QuotaViolationError: H,
    aiokafka.AuthenticationFailedError: R,
    aiokafka.AuthenticationMethodNotSupported: R,
    aiokafka.UnrecognizedBrokerVersion: R,
    aiokafka.IncompatibleBrokerVersion: R,
    aiokafka.KafkaConfigurationError: R,
    aiokafka.UnsupportedCodecError: R,
    aiokafka.ProducerFenced: R,
    aiokafka.ProducerClosed: None,
    aiokafka.RecordTooLargeError: P,
    aiokafka.NoOffsetForPartitionError: P,
    aiokafka.CommitFailedError: T,
    aiokafka.ConsumerStoppedError: None,
    aiokafka.IllegalOperation: None,
}

REDIS: dict[type[BaseException], ErrorClass | None] = {
    redis.RedisError: None,
    redis.ConnectionError: X,
    redis.TimeoutError: X,
    redis.InvalidResponse: X,
    redis.DataError: P,
    redis.WatchError: T,
    redis.ResponseError: R,
    redis.AuthenticationError: R,
    redis.AuthorizationError: R,
    redis.BusyLoadingError: U,
    redis.ClusterDownError: U,
    redis.TryAgainError: U,
    redis.MaxConnectionsError: U,
    redis.ExternalAuthProviderError: U,
    redis.SlotNotCoveredError: U,
    sentinel.MasterNotFoundError: U,
    sentinel.SlaveNotFoundError: U,
}
"""The others of redis-py are answers of the server, or mistakes of the caller."""


@pytest.mark.parametrize(
    ("classifier", "table", "modules"),
    [
        (classify_kafka, AIOKAFKA, (aiokafka,)),
        (classify_redis, REDIS, (redis, sentinel)),
    ],
)
def test_each_exception_of_a_client_has_the_class_of_its_nearest_base(
    classifier: Any, table: dict[type[BaseException], ErrorClass | None], modules: tuple[Any, ...]
) -> None:
    """B-T17, batcher/B25."""
    found = {
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, Exception)
        and each.__module__.partition(".")[0] in {"aiokafka", "redis"}
        and not hasattr(each, "errno")
    }
    assert table.keys() <= found
    for each in {*found, *table}:
        expected = next((table[base] for base in each.__mro__ if base in table), None)
        error = made(each)
        assert classifier(error) is expected, each
        assert classifier(around(error)) is expected, each


@pytest.mark.parametrize(
    ("classifier", "error", "expected"),
    [
        (classify_kafka, aiokafka.KafkaConnectionError("Unable to bootstrap from [('h', 1)]"), U),
        (classify_kafka, aiokafka.KafkaConnectionError("No connection to broker at h:1"), U),
        (classify_kafka, aiokafka.KafkaConnectionError("Connection at h:1 broken: reset"), X),
        (classify_redis, redis.ConnectionError("Error 111 connecting to h:1. Refused."), U),
        (classify_redis, redis.TimeoutError("Timeout connecting to server"), U),
        (classify_redis, redis.ConnectionError("max number of clients reached"), U),
        (classify_redis, redis.ConnectionError("Connection closed by server."), X),
        (classify_redis, redis.ResponseError("WRONGTYPE Operation against a key"), R),
        (classify_redis, redis.ResponseError("NOREPLICAS Not enough good replicas"), U),
        (classify_redis, redis.ResponseError("MISCONF Redis is configured to save"), R),
        (classify_redis, redis.ResponseError("Invalid stream ID specified"), P),
        (classify_redis, redis.ResponseError("Protocol error: invalid bulk length"), P),
        *(
            (classifier, error, expected)
            for classifier in (classify_kafka, classify_redis)
            for error, expected in (
                (UnknownOutcomeError("ours"), X),
                (ValueError("of another part"), None),
                (ConnectionResetError("left to classify_network"), None),
            )
        ),
    ],
)
def test_an_error_is_classed_by_its_phase_and_message(
    classifier: Any, error: BaseException, expected: ErrorClass | None
) -> None:
    """B-T17: before anything was sent it is unavailable, afterwards unknown."""
    assert classifier(error) is expected


def test_a_sink_uses_the_public_classifier() -> None:
    for sink, error in (
        (KafkaSink("t", bootstrap="h:1"), aiokafka.KafkaTimeoutError()),
        (RedisSink("redis://h", stream="t"), redis.TimeoutError()),
    ):
        assert classified(error, sink.classify) is X


def test_a_classifier_needs_no_client() -> None:
    """Of Kafka: a program may have one of its clients alone; of Redis, with an error of another part."""
    program = (
        "import sys\n"
        "for name in ('aiokafka', 'redis'): sys.modules[name] = None\n"
        "from sluicegate.kafka.errors import classify_kafka\n"
        "from sluicegate.redis.refusals import classify_redis\n"
        "print(classify_kafka(ValueError('x')), classify_redis(ValueError('x')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "None None\n", done.stderr
