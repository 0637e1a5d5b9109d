"""Why aiokafka's clients cannot start or deliver, as messages that give a remedy."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from aiokafka import errors as kafka

from ..._core.errors import ConfigError, SluicegateError, UnavailableError
from ..._core.logs import for_log
from .. import groups

if TYPE_CHECKING:
    from .options import MemberOptions

_UNREACHABLE = (
    kafka.KafkaConnectionError,
    kafka.NodeNotReadyError,
    kafka.KafkaTimeoutError,
    kafka.RequestTimedOutError,
    kafka.GroupCoordinatorNotAvailableError,
    TimeoutError,
    asyncio.TimeoutError,
)
_REFUSED_LOGIN = (
    kafka.AuthenticationFailedError,
    kafka.AuthenticationMethodNotSupported,
    kafka.SaslAuthenticationFailed,
    kafka.UnsupportedSaslMechanismError,
    kafka.IllegalSaslStateError,
)
_REBALANCED = (
    kafka.CommitFailedError,
    kafka.IllegalGenerationError,
    kafka.RebalanceInProgressError,
    kafka.UnknownMemberIdError,
)


def is_rebalanced(error: BaseException) -> bool:
    """Return whether a commit was refused because of a current or imminent rebalance."""
    return isinstance(error, _REBALANCED)


def reason_of(error: BaseException, options: MemberOptions) -> str:
    """Return why nothing can be delivered, as text for operators, without values of options."""
    group, bootstrap = options.group, options.bootstrap
    if isinstance(error, kafka.TopicAuthorizationFailedError):
        return groups.no_right_to_topics(_topics(error))
    if isinstance(error, kafka.GroupAuthorizationFailedError):
        return groups.no_right_to_group(group)
    if isinstance(error, kafka.InconsistentGroupProtocolError):
        return groups.other_protocol(group)
    if isinstance(error, kafka.InvalidSessionTimeoutError):
        return groups.bad_session_timeout(options.session_timeout)
    if isinstance(error, kafka.InvalidTopicError):
        return groups.bad_topic_name(for_log(error))
    if isinstance(error, _REFUSED_LOGIN):
        return groups.refused_login(bootstrap, type(error).__name__)
    if isinstance(error, kafka.UnknownTopicOrPartitionError):
        return groups.no_partition(for_log(error))
    if isinstance(error, _UNREACHABLE):
        return groups.unreachable(bootstrap)
    if options.instance is not None and "UnknownError" in str(error):  # FENCED_INSTANCE_ID
        return groups.refused_instance(options.instance)
    return for_log(error)


def opening_error(error: Exception, bootstrap: str) -> Exception:
    """Return the error for a producer that cannot be started, without values of options."""
    if isinstance(error, SluicegateError):
        return error
    name = type(error).__name__
    if isinstance(error, (*_REFUSED_LOGIN, ssl.SSLError)):
        return ConfigError(
            f"bootstrap={bootstrap!r}: the broker has refused the login or the certificate ({name}); "
            "see security_protocol, ssl_context and the sasl_... options"
        )
    if isinstance(error, kafka.ClusterAuthorizationFailedError):
        rule = "grant its user WRITE on the topic, or IDEMPOTENT_WRITE on the cluster"
        return ConfigError(f"bootstrap={bootstrap!r}: no idempotent producer is allowed; {rule}")
    if isinstance(error, (*_UNREACHABLE, OSError)):
        asked = "check that the port is right and the broker is running"
        return UnavailableError(f"no Kafka broker answers at {bootstrap} ({name}); {asked}")
    return UnavailableError(f"the broker at {bootstrap} gives no producer id ({for_log(error)})")


def _topics(error: BaseException) -> list[str]:
    named = error.args[0] if error.args else ()
    return [named] if isinstance(named, str) else list(map(str, named))
