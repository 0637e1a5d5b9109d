"""Translation of object store errors into Penstock's errors.

1. obstore has few error classes, so the status, the store's code and the kind of a network error
   are parsed from the error's text. Any other error is unknown.
2. The text may quote a URL with a signature: the part after a question mark is never shown, and the
   error itself is not kept as a cause.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from ..._core.errors import (
    RefusedError,
    SinkError,
    ThrottledError,
    TimedOutError,
    TooLargeError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})")
_KIND = re.compile(r"\bHttpError \{\s+kind: (\w+)")
_SYSTEM = re.compile(r"\bcode: (\d{1,3}),\s+kind: \w+,\s+message: \"([^\"]+)\"")
_QUERY = re.compile(r"\?[^\s,)\"]*")
_SHOWN = 300
"""Maximum length, in characters, of a text without a known form."""
_DISK: Mapping[str, str] = {
    "2": "create the folder of {place}",
    "13": "make {place} readable and writable",
    "1": "make {place} readable and writable",
    "17": "remove the broken link that is in place of a folder at {place}",
    "20": "put a folder in place of the file at {place}",
    "28": "free space on the file system of {place}",
    "30": "mount the file system of {place} for writing",
    "122": "free space, or raise the quota, on the file system of {place}",
}
"""The remedies for a local folder, by errno."""
_TOO_LARGE = "27"
_REPAIRS: Mapping[str, str] = {
    "NoSuchBucket": "create the bucket of {place}, or name another one",
    "ContainerNotFound": "create the container of {place}, or name another one",
    "AccessDenied": "grant the right to write objects (s3:PutObject) in {place}",
    "AllAccessDisabled": "enable access to {place}",
    "AccountProblem": "resolve the problem with the account of {place}",
    "AuthorizationFailure": "grant the right to write objects in {place}",
    "AuthorizationPermissionMismatch": "grant the right to write blobs in {place}",
    "ExpiredToken": "renew the credentials for {place}; they have expired",
    "TokenRefreshRequired": "renew the credentials for {place}; they have expired",
    "InvalidToken": "correct the credentials for {place}",
    "InvalidAccessKeyId": "correct the access key for {place}",
    "SignatureDoesNotMatch": "correct the secret key for {place}",
    "AuthenticationFailed": "correct the credentials for {place}",
    "AuthorizationHeaderMalformed": "pass the bucket's region for {place}, such as config={{'region': 'eu-west-1'}}",
    "IllegalLocationConstraintException": "pass the bucket's region for {place}",
    "PermanentRedirect": "pass the bucket's region for {place}",
    "RequestTimeTooSkewed": "set this machine's clock",
    "QuotaExceeded": "raise the quota of {place}",
}
_BY_STATUS: Mapping[int, str] = {
    HTTPStatus.MOVED_PERMANENTLY: "pass the bucket's region for {place}",
    HTTPStatus.TEMPORARY_REDIRECT: "pass the bucket's region for {place}",
    HTTPStatus.UNAUTHORIZED: "correct the credentials for {place}",
    HTTPStatus.FORBIDDEN: "grant the right to write objects in {place}",
    HTTPStatus.NOT_FOUND: "create the bucket of {place}, or name another one",
    HTTPStatus.METHOD_NOT_ALLOWED: "use a store that accepts objects instead of {place}",
    HTTPStatus.INSUFFICIENT_STORAGE: "free space on the disks of {place}",
}
_THROTTLES = frozenset({"SlowDown", "ServerBusy", "TooManyRequests", "RequestLimitExceeded"})
_LOST = frozenset({"NoSuchUpload"})
"""A multipart upload no longer exists; a retry starts a new one."""
_TOO_MUCH = frozenset({"EntityTooLarge", "RequestBodyTooLarge", "KeyTooLongError"})
_MAY_PASS = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED}
)
_BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


def translated(error: BaseException, place: str) -> SinkError:
    """Return our error for an error of the store; `place` is part of the message."""
    if isinstance(error, SinkError):
        return error
    text = str(error)
    status = int(found.group(1)) if (found := _STATUS.search(text)) else None
    code = found.group(1) if (found := _CODE.search(text)) else ""
    if status is not None or code:
        return _of_answer(place, status or 0, code, text)
    if "Received redirect without" in text:
        return _of_answer(place, HTTPStatus.MOVED_PERMANENTLY, "", text)
    if "source: BadScheme" in text:
        return RefusedError(
            f"{place}: the endpoint has no TLS",
            repair="name an endpoint that begins with https://, or pass client_options={'allow_http': True}",
        )
    if found := _KIND.search(text):
        match found.group(1):
            case "Connect":
                return UnavailableError(f"{place} cannot be reached")
            case "Timeout":
                return TimedOutError(f"{place} has not answered in time")
            case _:
                return UnknownOutcomeError(f"the connection to {place} was lost")
    if found := _SYSTEM.search(text):
        return _of_disk(place, *found.groups())
    if isinstance(error, OSError) and str(error.errno) in _DISK:  # of a sync: it may be stored
        return _of_disk(place, str(error.errno), str(error.strerror))
    return UnknownOutcomeError(f"{place}: {type(error).__name__}: {_first_line(text)}")


def missing_folder(folder: object) -> RefusedError:
    """Return the error of a local folder that does not exist."""
    return RefusedError(f"{folder} is no folder", repair=f"create the folder {folder}")


def _of_disk(place: str, number: str, message: str) -> SinkError:
    told = f"{place} cannot be written: {message}"
    if number == _TOO_LARGE:
        return TooLargeError(told)
    if (repair := _DISK.get(number)) is not None:
        return RefusedError(told, repair=repair.format(place=place))
    return TransientError(told)


def _of_answer(place: str, status: int, code: str, text: str) -> SinkError:
    said = found.group(1) if (found := _MESSAGE.search(text)) else ""
    told = f"{place} answers {status or ''} {code}".rstrip() + (f": {said}" if said else "")
    if code in _THROTTLES or (status in _BUSY and code not in _REPAIRS):
        return ThrottledError(told)
    repair = _REPAIRS.get(code) or (None if code in _LOST else _BY_STATUS.get(status))
    if repair is not None:
        return RefusedError(told, repair=repair.format(place=place))
    if code in _LOST:
        return TransientError(told)
    if code in _TOO_MUCH:
        return TooLargeError(told)
    if 400 <= status < 500 and status not in _MAY_PASS:
        # no request is about a single item, so no item is the cause
        return RefusedError(told, repair=f"correct the settings of {place}, as its answer says")
    if status == HTTPStatus.BAD_GATEWAY:  # of a proxy, while the store behind it is down
        return UnavailableError(told)
    return TransientError(told)


def _first_line(text: str) -> str:
    return _QUERY.sub("?...", text.partition("\n")[0])[:_SHOWN]
