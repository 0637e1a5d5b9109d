"""The meaning of librdkafka's errors for a source, as messages that give a remedy, and its log
lines.

1. The names of librdkafka's own error codes begin with an underscore, but are public.
2. While a broker is down, each librdkafka connection logs every attempt, up to 40 lines a
   second. At most one line a minute is logged for each cause. Two lines have the same cause if they
   differ in nothing but the client, times and counts.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from ..._core.logs import for_log
from .. import groups
from ..arguments import no_topic

if TYPE_CHECKING:
    from .options import GroupOptions

_UNREACHABLE = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.BROKER_NOT_AVAILABLE,
}
_REFUSED_LOGIN = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
}
_REBALANCED = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
}
_NO_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
_NO_OFFSET = {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION}
_FENCED = {KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID, KafkaError._FENCED}
_NO_PROTOCOL = {KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE}
EVERY = 60.0
"""Seconds between two lines with the same cause."""
MOST = 1000
"""Maximum number of causes to remember."""
_CLIENT = re.compile(r"\[[^\]]*#(?:consumer|producer)-\d+\]")
_COUNT = re.compile(r"(?<![\w:.#/\-])\d+")
"""A number that is neither a port nor part of an address or a name."""
LOGGER = logging.getLogger("librdkafka")


def librdkafka_error(error: BaseException) -> KafkaError | None:
    """Return the librdkafka error that an exception holds."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return None


def is_rebalanced(error: KafkaError | None) -> bool:
    """Return whether a commit was refused because of a current or imminent rebalance."""
    return error is not None and error.code() in _REBALANCED


def is_end(error: KafkaError) -> bool:
    """Return whether a partition has been read to its end, which is not an error."""
    return error.code() == KafkaError._PARTITION_EOF


def is_out_of_range(error: KafkaError) -> bool:
    """Return whether the next offset of a partition is no longer retained."""
    return error.code() in _NO_OFFSET


def is_truncated(error: KafkaError) -> bool:
    """Return whether the log was truncated before the next offset, and may have grown again.

    librdkafka names this cause in the text of the error only.
    """
    return KafkaError(KafkaError._LOG_TRUNCATION).str() in error.str()


def is_denied(error: KafkaError | None) -> bool:
    """Return whether reading a topic is not allowed."""
    return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def is_unreachable(error: KafkaError) -> bool:
    """Return whether no broker has answered."""
    return error.code() in _UNREACHABLE


def is_refused_login(error: KafkaError) -> bool:
    """Return whether a broker refused the login, or its certificate was rejected."""
    return error.code() in _REFUSED_LOGIN


def is_about_topics(error: KafkaError) -> bool:
    """Return whether a topic is missing, or reading it is not allowed."""
    return error.code() in _NO_TOPIC or is_denied(error)


def reason_of(
    error: BaseException | KafkaError, options: GroupOptions, topic: str | None = None
) -> str:
    """Return why nothing can be delivered, as text for operators, without values of options."""
    found = error if isinstance(error, KafkaError) else librdkafka_error(error)
    if found is None:
        is_late = isinstance(error, TimeoutError)
        told = for_log(error) if isinstance(error, BaseException) else str(error)
        return groups.unreachable(options.bootstrap) if is_late else told
    code = found.code()
    if is_denied(found):
        return groups.no_right_to_topics(() if topic is None else (topic,))
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return groups.no_right_to_group(options.group)
    if code == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
        return groups.other_protocol(options.group)
    if code == KafkaError.INVALID_SESSION_TIMEOUT:
        return groups.bad_session_timeout(options.session_timeout)
    if code == KafkaError.TOPIC_EXCEPTION:
        return groups.bad_topic_name(found.str())
    if code in _REFUSED_LOGIN:
        return groups.refused_login(options.bootstrap, found.name())
    if code in _NO_TOPIC:
        return groups.no_partition(found.str()) if topic is None else no_topic((topic,))
    if code in _UNREACHABLE:
        return groups.unreachable(options.bootstrap)
    if code in _FENCED and options.instance is not None:
        return groups.refused_instance(options.instance)
    if code in _NO_PROTOCOL and options.protocol == "consumer":
        return f"{options.bootstrap} has no groups of protocol='consumer'; use 'cooperative'"
    return f"{found.name()}: {found.str()}"


class OncePerCause(logging.Filter):
    """Drops lines with the same cause as one of the last minute."""

    def __init__(self) -> None:
        super().__init__()
        self._causes: dict[str, float] = {}
        """The time of the last line of each cause."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the line."""
        now, text = record.created, record.getMessage()
        cause = f"{record.levelno} {_COUNT.sub('', _CLIENT.sub('', text))}"
        if 0 <= now - self._causes.get(cause, -EVERY) < EVERY:
            return False
        self._causes.pop(cause, None)
        if len(self._causes) >= MOST:
            del self._causes[next(iter(self._causes))]
        self._causes[cause] = now
        return True


LOGGER.addFilter(OncePerCause())
