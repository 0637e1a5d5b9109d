"""The meaning of HTTP responses and of the clients' errors. White box: an error by its status, and
its text for logs.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

import httpcore
import httpx
import httpx2
import pytest

from sluicegate import (
    ErrorClass,
    PermanentError,
    RefusedError,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
)
from sluicegate._core.logs import for_log
from sluicegate.errors import TimedOutError, TooLargeError
from sluicegate.http import classify_http
from sluicegate.http.errors import HttpStatusError, for_item, for_status, for_transport, seconds_of

P, T, U, X = ErrorClass.PERMANENT, ErrorClass.TRANSIENT, ErrorClass.UNAVAILABLE, ErrorClass.UNKNOWN
R = ErrorClass.REFUSED
STATUSES = [
    *((status, R) for status in (301, 302, 303, 307, 308, 401, 403, 404, 405, 407, 410)),
    *((status, P) for status in (300, 304, 400, 402, 409, 411, 413, 415, 422, 451)),
    (408, T),
    (429, ErrorClass.THROTTLE),
    *((status, T) for status in (500, 501, 507, 599)),
    (502, U),
    (503, U),
    (504, X),
]


@pytest.mark.parametrize(("status", "expected"), STATUSES)
def test_a_status_has_its_class(status: int, expected: ErrorClass) -> None:
    """B-T17, B25: by status; 502 and 503 make producers wait, and a gateway timeout leaves the outcome of
    the request unknown.
    """
    assert classify_http(HttpStatusError(status, "http://x/", "")) is expected
    raised = for_status(status, "http://x/", "", None)
    assert classify_http(raised) is expected
    wrapped = RuntimeError("around")
    wrapped.__cause__ = raised
    assert classify_http(wrapped) is expected
    request = httpx.Request("POST", "http://x/")
    assert (
        classify_http(
            httpx.HTTPStatusError(
                "", request=request, response=httpx.Response(status, request=request)
            )
        )
        is expected
    )


ERRORS = [
    ("ConnectError", U),
    ("ConnectTimeout", U),
    ("ProxyError", U),
    ("PoolTimeout", T),
    ("ReadTimeout", X),
    ("WriteTimeout", X),
    ("ReadError", X),
    ("WriteError", X),
    ("RemoteProtocolError", X),
    ("LocalProtocolError", T),
    ("UnsupportedProtocol", R),
]


@pytest.mark.parametrize("library", [httpx, httpx2, httpcore])
@pytest.mark.parametrize(("name", "expected"), ERRORS)
def test_a_clients_error_has_its_class_by_name(
    library: Any, name: str, expected: ErrorClass
) -> None:
    """B-T17, B25: network and timeouts; unknown once the request may have been sent."""
    assert classify_http(getattr(library, name)("it broke")) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(), U),
        (socket.gaierror(), U),
        (ConnectionResetError(), T),
        (TimeoutError(), T),
        (EOFError(), T),
        (ssl.SSLError(), T),
        (UnavailableError("ours"), U),
        (PermanentError("ours"), P),
        (ValueError(), None),
        (KeyError("status_code"), None),
    ],
)
def test_other_errors(error: Exception, expected: ErrorClass | None) -> None:
    """B-T17: network errors; others are left to other classifiers."""
    assert classify_http(error) is expected


def test_causes_that_go_round_end() -> None:
    one, two = ValueError(), KeyError()
    one.__cause__, two.__cause__ = two, one
    assert classify_http(one) is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, ThrottledError),
        (502, UnavailableError),
        (503, UnavailableError),
        (500, TransientError),
        (504, TimedOutError),
        (404, RefusedError),
        (409, PermanentError),
        (413, TooLargeError),
    ],
)
def test_an_answer_raises_our_error_from_the_servers(status: int, kind: type[Exception]) -> None:
    """batcher/B41: the status and the body are in the error."""
    error = for_status(status, "https://host/bulk", "say why " * 100, 7.0)
    assert type(error) is kind
    assert getattr(error, "perhaps_of_item", False) is (status == 502)
    cause = error.__cause__
    assert isinstance(cause, HttpStatusError)
    assert (cause.status, cause.retry_after, cause.place) == (status, 7.0, "https://host/bulk")
    assert str(error).startswith(f"HTTP {status} ")
    assert "from https://host/bulk: say why say why" in str(error)
    assert len(str(error)) < 700
    assert "say why" not in for_log(error)
    assert f"HTTP {status} " in for_log(error)
    if kind in {ThrottledError, UnavailableError, RefusedError}:
        assert getattr(error, "retry_after", None) == 7.0


def test_an_unknown_status_has_no_phrase() -> None:
    assert str(for_status(499, "http://x/", "", None)) == "HTTP 499 from http://x/"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, ThrottledError),
        (503, TransientError),
        (500, TransientError),
        (408, TransientError),
        (400, PermanentError),
    ],
)
def test_an_items_status_has_its_error(status: int, kind: type[Exception]) -> None:
    assert type(for_item(status, "", 1.0)) is kind


def hook_error(status: int) -> httpx.HTTPStatusError:
    """The error of a response hook that calls `raise_for_status`."""
    request = httpx.Request("POST", "http://x/")
    return httpx.HTTPStatusError(
        "", request=request, response=httpx.Response(status, request=request)
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.UnsupportedProtocol("ftp"), RefusedError),
        (httpx.InvalidURL("no such host name"), RefusedError),
        (httpx.ProxyError("407 Proxy Authentication Required"), RefusedError),
        (httpx.ProxyError("403 Forbidden"), RefusedError),
        (httpx.ProxyError("502 Bad Gateway"), UnavailableError),
        (httpx.PoolTimeout("full"), TransientError),
        (ZeroDivisionError(), UnknownOutcomeError),
        (OSError("reset"), UnknownOutcomeError),
        (hook_error(401), RefusedError),
        (hook_error(500), TransientError),
        (hook_error(200), UnknownOutcomeError),
        (ThrottledError("a client of ours"), ThrottledError),
    ],
)
def test_a_clients_error_says_that_nothing_was_sent_only_where_that_is_certain(
    error: Exception, kind: type[Exception]
) -> None:
    made = for_transport(error, "http://x/")
    assert type(made) is kind
    assert made is error or made.__cause__ is error or made.__cause__ is not None


def test_an_error_whose_text_cannot_be_shown_is_shown_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Mute" in str(for_transport(Mute(), "http://x/"))


DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
WALL = 1445412450.0  # 30 s earlier
YEAR = 366 * 86_400.0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "120"}, 120.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": DATE}, 30.0),
        ({"retry-after": DATE, "date": "Wed, 21 Oct 2015 07:27:50 GMT"}, 10.0),
        ({"retry-after": DATE, "date": "garbage"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:00:00 GMT"}, 0.0),
        ({"retry-after": "Wednesday, 21-Oct-15 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed Oct 21 07:28:00 2015"}, 30.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 99 Oct 2015 07:28:00 GMT"}, None),
        ({"retry-after": "1e308"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "1763810000"}, YEAR),
        ({"retry-after": "9" * 400}, YEAR),
        ({"retry-after": "9" * 5_000}, None),
        ({"retry-after": "-" + "9" * 400}, 0.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, YEAR),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -2359"}, YEAR),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -9999"}, None),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 +9959"}, None),
        ({"retry-after": "Mon, 01 Jan 0001 00:00:00 +2359"}, 0.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -99999999999999"}, None),
        ({"retry-after": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"}, None),
        ({"retry-after": DATE, "date": "Fri, 31 Dec 9999 23:59:59 +99999999999999"}, 30.0),
        ({"retry-after": DATE, "date": "Fri, 31 Dec 9999 23:59:59 -9999"}, 30.0),
        ({"retry-after": DATE, "date": "Fri, 31 Dec 9999 23:59:59 +9959"}, 30.0),
        ({"retry-after": "Wed, " * 10_000}, None),
    ],
)
def test_retry_after_is_read_as_seconds_and_as_a_date(
    headers: dict[str, str], expected: float | None
) -> None:
    """batcher/4a.6: both forms; a date is relative to the server's own `Date`."""
    assert seconds_of(headers, WALL) == expected
