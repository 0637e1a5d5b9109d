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
    told, name, code = for_log(error), type(error).__name__, 0
    if isinstance(error, _UNREACHABLE):
        return groups.unreachable(options.bootstrap)
    if isinstance(error, kafka.BrokerResponseError):
        code = error.errno
    elif isinstance(error, _REFUSED_LOGIN):
        code = kafka.SaslAuthenticationFailed.errno
    if options.instance is not None and "UnknownError" in str(error):  # aiokafka does not know it
        code = groups.FENCED_INSTANCE
    topics = _topics(error) if code == groups.TOPIC_DENIED else ()
    return groups.reason(code, options, name=name, told=told, topics=topics)


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
