"""The classes of HTTP responses and of client errors.

1. The status decides for a whole request: 429 throttles, 502 and 503 are outages, a 504 leaves the
   outcome unknown, 408 and other 5xx are transient, 401, 403, 404, 405, 407, 410 and redirects refuse every
   request. Every other unsuccessful status is permanent.
2. Client errors are recognized by class name, which httpx, its forks and httpcore share, so none of
   them is imported.
3. Once a request may have been sent, an error without a response leaves its outcome unknown, and so
   does an unknown kind of error. Nothing was sent only if no connection was established.
4. Of a request, messages contain at most the scheme, host and path of its URL. Server text may quote
   secrets, so it is redacted. It may also quote items, so `summary`, the text for logs, omits it.
5. Errors of credentials, permissions, paths and proxies are not caused by an item: such a response
   is a `RefusedError` with its repair, which `Retry` handles as an outage. Redirects are among them,
   since they are not followed: the URL is wrong, or a login has expired and the server redirects to
   its login page. A 403 may concern a single body; `Retry` detects that by sending smaller parts of
   the batch.
6. An unreadable `Retry-After` is ignored. `Retry` decides how much of a delay to respect.
"""

from __future__ import annotations

import re
import socket
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .._core import addresses
from .._core.classify import caused, classified_by_cause
from .._core.errors import (
    ConfigError,
    ErrorClass,
    PermanentError,
    RefusedError,
    ResultMismatch,
    SinkError,
    ThrottledError,
    TimedOutError,
    TooLargeError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
)
from .._core.text import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_P, _T, _U, _X, _R = (
    ErrorClass.PERMANENT,
    ErrorClass.TRANSIENT,
    ErrorClass.UNAVAILABLE,
    ErrorClass.UNKNOWN,
    ErrorClass.REFUSED,
)
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REPAIRS = {
    401: "give credentials that {place} accepts, as auth= or in its URL; those that were sent are "
    "wrong or have expired",
    403: "grant the credentials that were sent the right to {method} to {place}",
    404: "correct the path of {place}, or create the resource that it names",
    405: "give a method= that {place} takes, instead of {method}, or correct its path",
    407: "give credentials that the proxy on the way to {place} accepts, in client_options proxy=",
    410: "give the URL that has replaced {place}, which is gone for good",
}
REFUSALS = frozenset({*_REPAIRS, *REDIRECTS})
_STATUSES = {
    **dict.fromkeys(REFUSALS, _R),
    408: _T,
    429: ErrorClass.THROTTLE,
    502: _U,
    503: _U,
    504: _X,
}
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
    "InvalidURL": _R,
    "UnsupportedProtocol": _R,
    "TooManyRedirects": _P,
    "LocalProtocolError": _T,
    "TimeoutException": _T,
    "NetworkError": _T,
    "TransportError": _T,
}
_BY_STATUS: dict[int, type[SinkError]] = {413: TooLargeError, 504: TimedOutError}
_BY_CLASS: dict[ErrorClass, type[SinkError]] = {
    _P: PermanentError,
    _T: TransientError,
    _U: UnavailableError,
    _X: UnknownOutcomeError,
}
_TIMEOUTS = frozenset({"ReadTimeout", "WriteTimeout"})
_NOT_SENT = frozenset({"PoolTimeout", "LocalProtocolError"})
_OF_PROXY = re.compile(r"([0-9]{3})\b")
"""The beginning of a proxy's error when it refuses a tunnel."""
_SHOWN = 500
"""Characters of server text shown in a message."""
_SECONDS = re.compile(r"\s*([+-]?)([0-9]{1,400}(?:\.[0-9]{1,400})?)\s*")
_LONGEST_DATE = 64
"""Characters of the longest date format."""
_YEAR = 366 * 86_400.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RecordRefused(PermanentError):
    """A body that was refused, and not applied, because of one of its records.

    `at` is the index of that record in the body, if the server reports it.
    """

    def __init__(self, message: str, *, at: int | None = None) -> None:
        super().__init__(message)
        self.at = at


class HttpStatusError(Exception):
    """An unsuccessful response; the `__cause__` of the error that the sink raises.

    `status` is its code, `body` the beginning of its text, `retry_after` the seconds of its
    `Retry-After`, `place` the URL without userinfo and query.
    """

    def __init__(
        self, status: int, place: str, body: str, retry_after: float | None = None
    ) -> None:
        super().__init__(_told(status, place) + (f": {body}" if body else ""))
        self.status = status
        self.place = place
        self.body = body
        self.retry_after = retry_after


def _told(status: int, place: str) -> str:
    known = f" {HTTPStatus(status).phrase}" if status in {*HTTPStatus} else ""
    return f"HTTP {status}{known} from {place}"


def classify_http(error: BaseException) -> ErrorClass | None:
    """The class of an HTTP error, by its status or the client's exception type; `None` for other
    errors.

    429 is a throttle; 408 and 5xx are transient, but 502 and 503 are unavailable and 504 unknown;
    401, 403, 404, 405, 407, 410 and redirects are refused; other statuses are permanent. A failure
    to connect (connection refused, unknown host, failed handshake) is unavailable. An error after
    the request may have been sent is unknown.

    Looks through `__cause__`. Errors of Sluicegate keep their own class. Does not suspend, and
    imports no client.
    """
    return classified_by_cause(error, _class_of)


def class_of_status(status: int) -> ErrorClass:
    """The class of an unsuccessful response."""
    return _STATUSES.get(status) or (_T if status >= 500 else _P)


def _class_of(error: BaseException) -> ErrorClass | None:
    status = _status_of(error)
    if status is not None:
        return class_of_status(status)
    for kind in type(error).__mro__:
        if kind.__name__ in _NAMES:
            return _NAMES[kind.__name__]
    if isinstance(error, (ConnectionRefusedError, socket.gaierror)):
        return _U
    return _T if isinstance(error, (OSError, EOFError)) else None


def _status_of(error: BaseException) -> int | None:
    status = (
        error.status
        if isinstance(error, HttpStatusError)
        else getattr(getattr(error, "response", None), "status_code", None)
    )
    return status if isinstance(status, int) else None


def for_status(
    status: int,
    place: str,
    body: str,
    retry_after: float | None,
    *,
    reason: str = "",
    repair: str | None = None,
) -> SinkError:
    """The error for an unsuccessful response.

    `reason` is a word that logs may show. With `repair` the response is a refusal, whatever its
    status.
    """
    cause = HttpStatusError(status, place, shorten(body), retry_after)
    summary = _told(status, place) + (f" ({reason})" if reason else "")
    kind = class_of_status(status) if repair is None else _R
    if kind is _R:
        repair = repair or repair_of(status, place)
        summary = f"{summary}; to repair: {repair}"
    delay = retry_after if kind in {_U, _R} else None
    return caused(_build(kind, cause, repair or ""), cause, summary=summary, retry_after=delay)


def _build(kind: ErrorClass, cause: HttpStatusError, repair: str) -> SinkError:
    message = str(cause)
    if kind is ErrorClass.THROTTLE:
        return ThrottledError(message, retry_after=cause.retry_after)
    if kind is _R:
        return RefusedError(message, repair=repair)
    if cause.status == HTTPStatus.BAD_GATEWAY:  # perhaps an item has crashed the server behind it
        return UnavailableError(message, perhaps_of_item=True)
    return (_BY_STATUS.get(cause.status) or _BY_CLASS[kind])(message)


def for_item(status: int, message: str, retry_after: float | None) -> SinkError:
    """The error of one item, by the item's own status in a response."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return ThrottledError(message, retry_after=retry_after)
    kind = (
        TransientError if status >= 500 or status == HTTPStatus.REQUEST_TIMEOUT else PermanentError
    )
    return caused(kind(message), HttpStatusError(status, "the answer about one item", ""))


def for_transport(error: Exception, place: str, redact: Callable[[str], str] = str) -> SinkError:
    """The error for a client's exception raised instead of a response."""
    if isinstance(error, SinkError):
        return error
    status = _status_of(error)
    if status is not None and not 200 <= status < 300:  # raised by a response hook of the client
        return caused(for_status(status, place, "", None), error)
    name, kind = type(error).__name__, _class_of(error)
    text = shorten(redact(text_of(error)) or name)
    refused = _OF_PROXY.match(text) if name == "ProxyError" else None
    if refused is not None and int(refused[1]) in REFUSALS:
        repair = (
            repair_of(407, place)
            if refused[1] == "407"
            else f"allow the proxy to connect to {place}"
        )
        return caused(
            RefusedError(f"the proxy refuses the connection to {place}: {text}", repair=repair),
            error,
        )
    if kind is _R:
        return caused(
            RefusedError(f"no request to {place} can be made: {text}", repair="correct the URL"),
            error,
        )
    if kind is _U:
        return caused(UnavailableError(f"no connection to {place}: {text}"), error)
    if _NOT_SENT & {base.__name__ for base in type(error).__mro__}:
        return caused(TransientError(f"not sent to {place}: {name}: {text}"), error)
    return _unknown(error, f"no answer from {place}", text)


def for_broken_answer(
    error: Exception, place: str, redact: Callable[[str], str] = str
) -> UnknownOutcomeError:
    """The error for an exception during the reading of a successful response; it never claims that
    nothing was applied.
    """
    if isinstance(error, UnknownOutcomeError):
        return error
    text = shorten(redact(text_of(error)) or type(error).__name__)
    if _class_of(error) is not None:
        return _unknown(error, f"no complete answer from {place}", text)
    name = type(error).__name__
    made = ResultMismatch(
        f"the answer from {place} cannot be read ({name}: {text}); the outcome of every item "
        "is unknown"
    )
    summary = (
        f"the answer from {place} cannot be read ({name}); the outcome of every item is unknown"
    )
    return caused(made, error, summary=summary)


def _unknown(error: Exception, what: str, text: str) -> UnknownOutcomeError:
    kind = (
        TimedOutError
        if _TIMEOUTS & {base.__name__ for base in type(error).__mro__}
        else UnknownOutcomeError
    )
    made = kind(f"{what} ({text}); the request may have been applied")
    summary = f"{what} ({type(error).__name__}); the request may have been applied"
    return caused(made, error, summary=summary)


def shorten(text: str) -> str:
    """Server text, truncated for a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# -- refusals --------------------------------------------------------------------------------------


def repair_of(
    status: int,
    place: str,
    *,
    method: str = "POST",
    has_credentials: bool = True,
    location: str | None = None,
) -> str:
    """The repair for one of the `REFUSALS`, in one sentence."""
    if status in REDIRECTS:
        target = "" if location is None else f", {location}"
        return (
            f"give the URL to which {place} redirects{target}, or log in again if that is a "
            "login page; redirects are not followed"
        )
    if status == HTTPStatus.UNAUTHORIZED and not has_credentials:
        return f"give credentials for {place}, as auth= or in its URL; none were sent"
    return _REPAIRS[status].format(place=place, method=method)


def target_of(location: str | None) -> str | None:
    """A `Location` without userinfo, query and fragment; `None` if it cannot be read."""
    if location is None:
        return None
    if "://" not in location:
        path = urlsplit(f"//-{location}").path if location.startswith("/") else ""
        return None if "@" in location else path or None
    try:
        return addresses.place(addresses.split("Location", location, ("http", "https"), ""))
    except ConfigError:
        return None


# -- Retry-After -----------------------------------------------------------------------------------


def seconds_of(headers: Mapping[str, str], wall_time: float) -> float | None:
    """The seconds of a `Retry-After`, a number or a date; `None` if it is absent or unreadable.

    The result is between 0 and a year. A date is relative to the response's own `Date`, which
    cancels clock skew, or else to `wall_time`. Never raises.
    """
    value = headers.get("retry-after")
    if value is None:
        return None
    found = _SECONDS.fullmatch(value)
    if found is not None:
        seconds = 0.0 if found[1] == "-" else float(found[2])
    else:
        until = _date(value)
        if until is None:
            return None
        now = _date(headers.get("date"))
        seconds = until - (wall_time if now is None else now)
    return min(max(0.0, seconds), _YEAR)


def _date(value: str | None) -> float | None:
    """A date in seconds since 1970; `None` if it is unreadable."""
    if value is None or len(value) > _LONGEST_DATE:
        return None
    try:
        found = parsedate_to_datetime(value)
        return (
            (found if found.tzinfo is not None else found.replace(tzinfo=UTC)) - _EPOCH
        ).total_seconds()
    except Exception:  # ValueError, OverflowError and any other error of the parser
        return None
