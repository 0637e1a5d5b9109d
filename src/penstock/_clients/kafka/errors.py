"""What an error of aiokafka means to operators, in words that say what to do."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from aiokafka import errors as kafka

from ..._core.errors import ConfigError, PenstockError, UnavailableError
from ..._core.told import for_log

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
    """Whether a commit was refused because the group has been rebalanced, or is about to be."""
    return isinstance(error, _REBALANCED)


def trouble_of(error: BaseException, options: MemberOptions) -> str:
    """Why nothing can be delivered, in words for operators, without values of options."""
    group, bootstrap = options.group, options.bootstrap
    if isinstance(error, kafka.TopicAuthorizationFailedError):
        return f"not authorized to read {_topics(error)}; it needs READ and DESCRIBE"
    if isinstance(error, kafka.GroupAuthorizationFailedError):
        return f"not authorized to use the group {group!r}; it needs READ"
    if isinstance(error, kafka.InconsistentGroupProtocolError):
        return (
            f"the group {group!r} has members with another protocol or assignor; "
            "use another group, or stop them first"
        )
    if isinstance(error, kafka.InvalidSessionTimeoutError):
        return (
            f"the broker does not allow session_timeout={options.session_timeout:g}; see its "
            "group.min.session.timeout.ms and group.max.session.timeout.ms"
        )
    if isinstance(error, kafka.InvalidTopicError):
        return f"the broker does not allow a topic's name: {for_log(error)}"
    if isinstance(error, _REFUSED_LOGIN):
        return f"{bootstrap} has refused the login ({type(error).__name__})"
    if isinstance(error, kafka.UnknownTopicOrPartitionError):
        return f"a partition does not exist, or may not be described: {for_log(error)}"
    if isinstance(error, _UNREACHABLE):
        return unreachable(options)
    if options.instance is not None and "UnknownError" in str(error):
        return f"the group has refused this member: {_of_another(options.instance)}"
    return for_log(error)


def opening_error(error: Exception, bootstrap: str) -> Exception:
    """The error to raise where a producer cannot be started, without values of options."""
    if isinstance(error, PenstockError):
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
        asked = "is this its port, and does it run?"
        return UnavailableError(f"no broker of Kafka answers at {bootstrap} ({name}); {asked}")
    return UnavailableError(f"the broker at {bootstrap} gives no producer id ({for_log(error)})")


def unreachable(options: MemberOptions) -> str:
    """No broker answers."""
    return f"no broker can be reached at {options.bootstrap}"


def lost_often(options: MemberOptions) -> str:
    """The broker removes this member again and again."""
    if options.instance is not None:
        why = _of_another(options.instance)
    else:
        why = f"is the event loop blocked for more than {options.session_timeout:g} s at a time?"
    return f"the partitions have been lost again and again: {why}"


def _of_another(instance: str) -> str:
    """The question behind FENCED_INSTANCE_ID, an error that aiokafka does not know by name."""
    return f"does another process use instance={instance!r}?"


def _topics(error: BaseException) -> str:
    named = error.args[0] if error.args else ()
    topics = [named] if isinstance(named, str) else sorted(map(str, named))
    return f"the topic {', '.join(map(repr, topics))}" if topics else "a topic"
