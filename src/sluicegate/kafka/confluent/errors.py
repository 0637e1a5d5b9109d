"""The meaning of librdkafka's errors for a source, as messages that give a remedy. The names of
librdkafka's own error codes begin with an underscore, but are public.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from ..._core.logs import for_log
from .. import groups

if TYPE_CHECKING:
    from .options import ConfluentOptions

_REBALANCED = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
}
_NO_OFFSET = {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION}
_NO_PROTOCOL = {KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE}
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
    return error is not None and error.code() == groups.TOPIC_DENIED


def is_unreachable(error: KafkaError) -> bool:
    """Return whether no broker has answered."""
    return error.code() in groups.UNREACHABLE


def is_refused_login(error: KafkaError) -> bool:
    """Return whether a broker refused the login, or its certificate was rejected."""
    return error.code() in groups.LOGIN_REFUSED


def is_about_topics(error: KafkaError) -> bool:
    """Return whether a topic is missing, or reading it is not allowed."""
    return error.code() in groups.NO_TOPIC or is_denied(error)


def reason_of(
    error: BaseException | KafkaError, options: ConfluentOptions, topic: str | None = None
) -> str:
    """Return why nothing can be delivered, as text for operators, without values of options."""
    found = error if isinstance(error, KafkaError) else librdkafka_error(error)
    if found is None:
        is_late = isinstance(error, TimeoutError)
        told = for_log(error) if isinstance(error, BaseException) else str(error)
        return groups.unreachable(options.bootstrap) if is_late else told
    code, name = found.code(), found.name()
    if code in _NO_PROTOCOL and options.protocol == "consumer":
        return f"{options.bootstrap} has no groups of protocol='consumer'; use 'cooperative'"
    topics = () if topic is None else (topic,)
    return groups.reason(code, options, name=name, told=f"{name}: {found.str()}", topics=topics)
