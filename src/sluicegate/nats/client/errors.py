"""The meaning of errors of nats-py, as messages that give a remedy.

1. A publish without an answer may have been stored: its outcome is unknown, regardless of nats-py's
   error.
2. nats-py converts errors of the server to lower case, including the subject.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nats.js import errors as js

from nats import errors as nats

from ..._core.errors import (
    ConfigError,
    ErrorClass,
    RefusedError,
    SluicegateError,
    UnavailableError,
)
from ..._core.errors import classify as class_of
from ..._core.logs import for_log
from .answers import ENABLE, api_error

if TYPE_CHECKING:
    from .options import NatsOptions

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


def class_of_error(error: BaseException) -> ErrorClass | None:
    """Classify an error of nats-py; `None` for any other exception. Does not look at causes."""
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


def opening_error(error: Exception, options: NatsOptions) -> Exception:
    """Return the error for a connection that cannot be opened, without values of options."""
    if isinstance(error, SluicegateError):
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
        return f"JetStream does not answer at {place}; {ENABLE}"
    if isinstance(error, ssl.SSLError):
        return f"TLS with {place} fails ({error.reason})"
    if _is_unreachable(error):
        return f"no NATS server answers at {place} ({type(error).__name__})"
    return for_log(error)


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
