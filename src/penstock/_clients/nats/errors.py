"""The meaning of errors of nats-py and answers of JetStream, as messages that give a remedy.

1. A publish that is acknowledged with an error was not stored. A publish without an answer may have
   been stored: its outcome is unknown, regardless of nats-py's error.
2. An error code of JetStream has one of five meanings: the message is invalid; the destination
   refuses everything until an operator repairs it; it is full and may be emptied by its consumers;
   it is temporarily unavailable; or the error is transient. An unlisted code is permanent below
   500, otherwise transient.
3. nats-py converts errors of the server to lower case, including the subject.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nats import errors as nats
from nats.js import errors as js

from ..._core.classify import classified_by_cause
from ..._core.errors import (
    ConfigError,
    ErrorClass,
    PenstockError,
    PermanentError,
    RefusedError,
    SinkError,
    ThrottledError,
    TransientError,
    UnavailableError,
)
from ..._core.errors import classify as class_of
from ..._core.told import for_log

if TYPE_CHECKING:
    from .options import NatsOptions

WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
"""Codes of a message that expects another last sequence."""
NOT_ENABLED = frozenset({10035, 10039, 10076})
"""Codes of a server or account without JetStream."""
NO_RESPONDERS = "503"
"""The status of a reply if there is no subscriber."""

_ENABLE = (
    "enable JetStream in the server's configuration (jetstream { }) and for the user's account"
)
_ROOM = "raise the limits of JetStream, or remove messages or streams"
_REPAIRS = {
    10002: _ROOM,
    10014: "create the consumer",
    10023: _ROOM,
    10026: "raise the limit of consumers, or remove some",
    10027: "raise the limit of streams, or remove some",
    10028: _ROOM,
    10035: _ENABLE,
    10039: _ENABLE,
    10047: _ROOM,
    10059: "create the stream",
    10060: "publish to subjects of the expected stream, or expect another one",
    10076: _ENABLE,
    10109: "use a stream that is not sealed",
    10120: "give the account a limit of JetStream",
    10122: _ROOM,
    10149: "create the consumer",
    10166: "allow the TTL of messages on the stream (allow_msg_ttl)",
    10168: "allow counters on the stream (allow_msg_counter)",
    10188: "allow schedules on the stream (allow_msg_schedules)",
}
_AWAY = frozenset({10004, 10006, 10007, 10008, 10009, 10041, 10063, 10118, 10119, 10194, 10195})
"""Codes of a cluster without a leader, or of a stream or consumer that is offline."""
_PASSING = frozenset({10158, 10163})
_STORE_FAILED = 10077
_FULL = ("maximum messages exceeded", "maximum bytes exceeded")
_FULL_SUBJECT = "maximum messages per subject exceeded"
_TOO_LARGE = "message too large"

_DENIED = re.compile(
    r"permissions violation for (?P<what>publish with reply of|publish to|subscription to) "
    r'"(?P<subject>(?:[^"\\]|\\.)*)"'
)
_ESCAPED = re.compile(r"\\(.)")
_LOGIN = ("authorization violation", "authentication expired", "authentication revoked")
_FULL_SERVER = ("maximum connections exceeded", "maximum account active connections exceeded")

_UNREACHABLE = (
    nats.NoServersError,
    nats.ConnectionClosedError,
    nats.ConnectionDrainingError,
    nats.ConnectionReconnectingError,
    nats.OutboundBufferLimitError,
    nats.StaleConnectionError,
)
_PERMANENT = (
    nats.BadHeaderError,
    nats.BadSubjectError,
    nats.MaxPayloadError,
)
_REFUSED = (
    nats.AuthorizationError,
    nats.InvalidUserCredentialsError,
    nats.SecureConnFailedError,
    nats.SecureConnRequiredError,
    nats.SecureConnWantedError,
)
_UNANSWERED = (nats.TimeoutError, nats.JsonParseError, nats.ProtocolError)
"""No answer, or one that cannot be read."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The server has dropped a command because a permission is missing."""

    what: Literal["publish", "subscribe"]
    subject: str
    """In lower case; see the rules."""
    of_reply: bool = False
    """Whether the subject is the reply subject of a publish."""

    @property
    def repair(self) -> str:
        """The operator's remedy."""
        return f"allow the user to {self.what} to {self.subject!r}"


def denied_by(error: BaseException) -> Denied | None:
    """Return the missing permission if nats-py's error is about one; otherwise `None`."""
    found = _DENIED.search(str(error).lower()) if isinstance(error, nats.Error) else None
    if found is None:
        return None
    what = found["what"]
    return Denied(
        "subscribe" if what.startswith("subscription") else "publish",
        _ESCAPED.sub(r"\1", found["subject"]),
        of_reply="reply" in what,
    )


def classify_nats(error: BaseException) -> ErrorClass | None:
    """Classify an error of nats-py, or an answer of JetStream; `None` for any other exception.

    A refused login, a missing permission, a subject without a stream and an account's limits are
    `REFUSED`. A lost connection, and a stream without a leader, are `UNAVAILABLE`. A full stream,
    and too many publishes without an answer, are `THROTTLE`. A timeout is `UNKNOWN`: the requested
    action may have been performed. A message that is too large, or that JetStream refuses, is
    `PERMANENT`.

    Looks through `__cause__`. Errors of Penstock keep their own class. Does not suspend.
    """
    return classified_by_cause(error, _class_of)


def _class_of(error: BaseException) -> ErrorClass | None:
    if isinstance(error, js.APIError):
        return class_of(api_error("JetStream", *_fields(error)))
    if isinstance(error, (js.NoStreamResponseError, nats.NoRespondersError)):
        return ErrorClass.REFUSED
    if isinstance(error, _UNREACHABLE):
        return ErrorClass.UNAVAILABLE
    if isinstance(error, _PERMANENT):
        return ErrorClass.PERMANENT
    if isinstance(error, _REFUSED) or is_login(error) or denied_by(error) is not None:
        return ErrorClass.REFUSED
    if _is_full_server(error):
        return ErrorClass.UNAVAILABLE
    if isinstance(error, js.TooManyStalledMsgsError):
        return ErrorClass.THROTTLE
    return ErrorClass.UNKNOWN if isinstance(error, _UNANSWERED) else None


def api_error(place: str, code: int, err_code: int, description: str) -> SinkError:
    """Return the error for an error answer of JetStream; nothing was applied.

    Args:
        place: the object of the request, for the message, such as `stream 'ORDERS'`.
        code: the answer's `code`, as of HTTP.
        err_code: its `err_code`, JetStream's own.
        description: its text.
    """
    told = f"{description} ({err_code})"
    if err_code in _REPAIRS:
        return RefusedError(f"{place} refuses it: {told}", repair=_REPAIRS[err_code])
    if err_code == _STORE_FAILED:
        return _not_stored(place, description, told)
    if err_code in _AWAY:
        return UnavailableError(f"{place} is not available: {told}")
    if code == 429:
        return ThrottledError(f"{place} accepts no more at the moment: {told}")
    if err_code in _PASSING or code >= 500:
        return TransientError(f"{place} did not carry out the request: {told}")
    return PermanentError(f"{place} refuses it: {told}")


def _not_stored(place: str, description: str, told: str) -> SinkError:
    if description in _FULL:
        return ThrottledError(
            f"{place} is full: {told}; its consumers are behind, or its limits are too low for "
            "discard=new"
        )
    if description == _FULL_SUBJECT:
        return TransientError(f"{place} has no more room for the subject: {told}")
    if description == _TOO_LARGE:
        return PermanentError(f"{place} refuses it: {told}")
    return UnavailableError(f"{place} cannot store it: {told}; the server's log says why")


def opening_error(error: Exception, options: NatsOptions) -> Exception:
    """Return the error for a connection that cannot be opened, without values of options."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, ssl.SSLError):
        repair = "trust the certificate (tls=...), or use its name (tls_hostname=...)"
        return RefusedError(f"TLS with {options.place} fails ({error.reason})", repair=repair)
    if is_login(error):
        told = "check the user and its password, token or credentials"
        return RefusedError(f"{options.place} has refused the login", repair=told)
    if _is_unreachable(error):
        return UnavailableError(trouble_of(error, options))
    if isinstance(error, nats.Error):
        return UnavailableError(f"{options.place} has refused the connection ({for_log(error)})")
    return ConfigError(f"nats-py cannot use its options ({for_log(error)})")


def is_login(error: BaseException) -> bool:
    """Return whether the server refuses the login or has revoked it."""
    if isinstance(error, nats.AuthorizationError):
        return True
    return isinstance(error, nats.Error) and any(each in str(error).lower() for each in _LOGIN)


def trouble_of(error: BaseException, options: NatsOptions) -> str:
    """Return why nothing can be sent or received, as text for operators, without option values."""
    place = options.place
    if is_login(error):
        return f"{place} has refused the login"
    if _is_full_server(error):
        return f"{place} takes no more connections"
    if (denied := denied_by(error)) is not None:
        return f"{place} denies it; {denied.repair}"
    if isinstance(error, js.APIError):
        return str(api_error("JetStream", *_fields(error)))
    if isinstance(error, (js.NoStreamResponseError, nats.NoRespondersError)):
        return f"JetStream does not answer at {place}; {_ENABLE}"
    if isinstance(error, ssl.SSLError):
        return f"TLS with {place} fails ({error.reason})"
    if _is_unreachable(error):
        return f"no NATS server answers at {place} ({type(error).__name__})"
    return for_log(error)


def no_stream(subject: str, *, is_enabled: bool | None) -> RefusedError:
    """Return the error of a publish that no stream acknowledges.

    Args:
        subject: the subject of the publish.
        is_enabled: whether JetStream is known to be enabled for the account, or known not to be.
    """
    if is_enabled is False:
        return RefusedError("JetStream is not enabled", repair=_ENABLE)
    repair = f"create a stream with the subject {subject!r}"
    if is_enabled is None:
        repair = f"{repair}, or {_ENABLE}"
    return RefusedError(f"no stream takes the subject {subject!r}", repair=repair)


def _is_full_server(error: BaseException) -> bool:
    return isinstance(error, nats.Error) and any(
        each in str(error).lower() for each in _FULL_SERVER
    )


def _is_unreachable(error: BaseException) -> bool:
    return isinstance(error, (*_UNREACHABLE, nats.TimeoutError, asyncio.TimeoutError, OSError))


def _fields(error: js.APIError) -> tuple[int, int, str]:
    known: dict[str, Any] = vars(error)  # nats-py's own errors about keys have no fields
    description = known.get("description") or type(error).__name__
    return known.get("code") or 0, known.get("err_code") or 0, description
