"""What HTTP's answers and the clients' errors mean.

1. A whole request is judged by its status: 429 throttles, 503 says that nobody is there, 504 that nobody knows, 408 and other 5xx may
   work next time, everything else that is no success is permanent.
2. A client's errors are known by the names of their classes, which httpx, its forks and httpcore share, so none of them is loaded to
   judge them.
3. Once a request may have left, an error without an answer leaves its outcome unknown. Where no connection came about, nothing was sent.
4. No message holds more of a request than the scheme, host and path of its URL.
"""

from __future__ import annotations

import math
import socket
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from .._core.errors import (
    ErrorClass,
    PermanentError,
    SinkError,
    ThrottledError,
    TimedOutError,
    TooLargeError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    classify,
)
from ._causes import caused, causes

if TYPE_CHECKING:
    from collections.abc import Mapping

_P, _T, _U, _X = ErrorClass.PERMANENT, ErrorClass.TRANSIENT, ErrorClass.UNAVAILABLE, ErrorClass.UNKNOWN
_STATUSES = {408: _T, 429: ErrorClass.THROTTLE, 503: _U, 504: _X}
_NAMES = {
    "ConnectError": _U,
    "ConnectTimeout": _U,
    "ProxyError": _U,
    "PoolTimeout": _T,
    "ReadTimeout": _X,
    "WriteTimeout": _X,
    "ReadError": _X,
    "WriteError": _X,
    "CloseError": _X,
    "RemoteProtocolError": _X,
    "DecodingError": _X,
    "InvalidURL": _P,
    "UnsupportedProtocol": _P,
    "TooManyRedirects": _P,
    "LocalProtocolError": _T,
    "TimeoutException": _T,
    "NetworkError": _T,
    "TransportError": _T,
}
_BY_STATUS: dict[int, type[SinkError]] = {413: TooLargeError, 504: TimedOutError}
_TIMEOUTS = frozenset({"ReadTimeout", "WriteTimeout"})
_SHOWN = 500
"""How many characters of an answer's body a message shows."""


class HttpStatusError(Exception):
    """A server's answer that is no success; the `__cause__` of the error that its sink raises.

    `status` is its code, `body` the beginning of its text, `retry_after` the seconds of its `Retry-After`, `place` the URL without
    userinfo and query.
    """

    def __init__(self, status: int, place: str, body: str, retry_after: float | None = None) -> None:
        super().__init__(f"HTTP {status} {_phrase(status)}".rstrip() + f" from {place}" + (f": {body}" if body else ""))
        self.status = status
        self.place = place
        self.body = body
        self.retry_after = retry_after


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def classify_http(error: BaseException) -> ErrorClass | None:
    """The class of an error of HTTP, by its status or by the class that the client gave it; `None` for one that is neither.

    429 is a throttle; 408 and 5xx are transient, but 503 is unavailable and 504 unknown; other statuses are permanent. A connection that
    did not come about (refused, no such name, no handshake) is unavailable. An error after the request may have been sent is unknown.

    Looks through `__cause__`. Errors of Penstock keep their own class. Does not suspend, and loads no client.
    """
    for link in causes(error):
        own = classify(link)
        if own is not ErrorClass.UNLISTED:
            return own
        answer = _class_of(link)
        if answer is not None:
            return answer
    return None


def class_of_status(status: int) -> ErrorClass:
    """The class of an answer that is no success."""
    return _STATUSES.get(status) or (_T if status >= 500 else _P)


def _class_of(error: BaseException) -> ErrorClass | None:
    status = error.status if isinstance(error, HttpStatusError) else getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return class_of_status(status)
    for kind in type(error).__mro__:
        if kind.__name__ in _NAMES:
            return _NAMES[kind.__name__]
    if isinstance(error, (ConnectionRefusedError, socket.gaierror)):
        return _U
    return _T if isinstance(error, (OSError, EOFError)) else None


def for_status(status: int, place: str, body: str, retry_after: float | None) -> SinkError:
    """What a request raises for an answer that is no success."""
    cause = HttpStatusError(status, place, _cut(body), retry_after)
    kind = class_of_status(status)
    if kind is ErrorClass.THROTTLE:
        return caused(ThrottledError(str(cause), retry_after=retry_after), cause)
    if kind is ErrorClass.UNAVAILABLE:
        return caused(_unavailable(str(cause), retry_after), cause)
    made = _BY_STATUS.get(status) or {_P: PermanentError, _T: TransientError, _X: UnknownOutcomeError}[kind]
    return caused(made(str(cause)), cause)


def for_item(status: int, message: str, retry_after: float | None) -> SinkError:
    """The error of one item, by the status that the server gave it within an answer that speaks for each."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return ThrottledError(message, retry_after=retry_after)
    return (TransientError if status >= 500 or status == HTTPStatus.REQUEST_TIMEOUT else PermanentError)(message)


def for_transport(error: Exception, place: str) -> Exception:
    """What a request raises for a client's error: one of ours where it says what became of the items, else the error itself."""
    kind = _class_of(error)
    told = str(error) or type(error).__name__
    if kind is _U:
        return caused(UnavailableError(f"no connection to {place}: {told}"), error)
    if kind is _X:
        made = TimedOutError if any(kind.__name__ in _TIMEOUTS for kind in type(error).__mro__) else UnknownOutcomeError
        return caused(made(f"no answer from {place} ({told}); the request may have been applied"), error)
    if kind is _T:
        return caused(TransientError(f"not sent to {place}: {type(error).__name__}: {told}"), error)
    return error


def seconds_of(headers: Mapping[str, str], wall_time: float) -> float | None:
    """The seconds of a `Retry-After`, given as such or as a date; `None` where there is none that can be read.

    A date is taken relative to the answer's own `Date`, so that it does not matter whose clock is right, else to `wall_time`.
    """
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        until = _date(value)
        if until is None:
            return None
        now = _date(headers.get("date"))
        seconds = until - (wall_time if now is None else now)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _date(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        found: datetime = parsedate_to_datetime(value)
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _unavailable(message: str, retry_after: float | None) -> UnavailableError:
    made = UnavailableError(message)
    made.retry_after = retry_after
    return made


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
