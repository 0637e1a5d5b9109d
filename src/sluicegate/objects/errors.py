"""Translation of object store errors into Sluicegate's errors.

1. obstore has few error classes, so the status, the store's code and the kind of a network error
   are parsed from the error's text. Any other error is unknown.
2. The text may quote a URL with a signature: the part after a question mark is never shown, and the
   error itself is not kept as a cause.
3. Until a connection is established nothing is written. So a host that answers nothing, a rejected
   certificate and a failure to get credentials use up no attempt of an item.
"""

from __future__ import annotations

import errno
import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from .._core.classify import summarized
from .._core.errors import (
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
_MESSAGE = re.compile(r"(?:<Message>|\"message\": ?\")([^<\"\n]{1,300})")
_KIND = re.compile(r"\bHttpError \{\s+kind: (\w+)")
_CONNECTING = re.compile(r"legacy::Error\(\s+Connect,")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s+(?:Other\(\s+OtherError\(\s+)?(\w+)")
_PROVIDER = re.compile(r"External \w+ credential provider: (\w+)(?:: ([^\n]*))?")
_METADATA = re.compile(
    r"Error performing \w+ http://(?:169\.254\.(?:169\.254|170\.23?)|metadata\.google\.internal)[:/]"
)
"""A request to the service for credentials of a machine, container or pod in a cloud."""
_SYSTEM = re.compile(r"\bcode: (\d{1,3}),\s+kind: \w+,\s+message: \"([^\"]+)\"")
_QUERY = re.compile(r"\?[^\s,)\"]*")
_SHOWN = 300
"""Maximum length, in characters, of a text without a known form."""
_DISK: Mapping[str, str] = {
    "2": "create the folder of {place}",
    "13": "make {place} and its folders readable and writable, and the folders above it accessible",
    "1": "make {place} and its folders readable and writable, and the folders above it accessible",
    "17": "remove the broken link that is in place of a folder at {place}",
    "20": "put a folder in place of the file at {place}",
    "40": "remove the symbolic link that leads to itself at {place}",
    "28": "free space on the file system of {place}",
    "30": "mount the file system of {place} for writing",
    "122": "free space, or raise the quota, on the file system of {place}",
}
"""The remedies for a local folder, by errno."""
_AWAY = frozenset(
    str(number)
    for number in (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ENOTCONN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    )
)
"""A lack of descriptors or memory, and a network file system whose server does not respond."""
_TOO_LARGE = "27"
_EXPIRED = (
    "renew the credentials for {place}, which have expired, and open the sink again; a function that "
    "creates the store with a credential provider renews them without that"
)
_REPAIRS: Mapping[str, str] = {
    "NoSuchBucket": "create the bucket of {place}, or name another one",
    "ContainerNotFound": "create the container of {place}, or name another one",
    "ContainerBeingDeleted": "create the container of {place} again, or name another one",
    "AccessDenied": "grant the right to write objects (s3:PutObject) in {place}",
    "AllAccessDisabled": "enable access to {place}",
    "AccountProblem": "resolve the problem with the account of {place}",
    "AuthorizationFailure": "correct the credentials for {place}, or grant them the right to write objects",
    "AuthorizationPermissionMismatch": "grant the right to write blobs in {place}",
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
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


def translate(error: BaseException, place: str) -> SinkError:
    """Return our error for an error of the store; `place` is part of the message."""
    if isinstance(error, SinkError):
        return error
    text = str(error)
    if (refusal := _of_credentials(text, place) or _of_certificate(text, place)) is not None:
        return refusal
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
            case "Timeout" if _CONNECTING.search(text):
                return UnavailableError(f"{place} cannot be reached: no connection in time")
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


def unreadable_folder(error: OSError, place: str) -> SinkError:
    """Return the error of a local folder that cannot be examined before a write."""
    return _of_disk(place, str(error.errno), str(error.strerror))


def _of_credentials(text: str, place: str) -> RefusedError | None:
    if (found := _PROVIDER.search(text)) is not None:
        name, said = found.groups()
        told = f"the credential provider for {place} raised {name}"
        made = RefusedError(
            f"{told}: {_QUERY.sub('?...', said)[:_SHOWN]}" if said else told,
            repair=f"correct the credential provider for {place}, or the service that it calls",
        )
        return summarized(made, told)
    if _METADATA.search(text) is not None:
        return RefusedError(
            f"there are no credentials for {place} in config= or the environment, and this "
            "machine's service for credentials does not provide any",
            repair=f"pass credentials for {place}, or give this machine a role with access to it",
        )
    return None


def _of_certificate(text: str, place: str) -> RefusedError | None:
    if (found := _CERTIFICATE.search(text)) is None:
        return None
    return RefusedError(
        f"the certificate of {place} is not trusted ({found.group(1)})",
        repair="let this machine trust the certificate of the endpoint, or name the endpoint as its "
        "certificate does",
    )


def _of_disk(place: str, number: str, message: str) -> SinkError:
    told = f"{place} cannot be written: {message}"
    if number == _TOO_LARGE:
        return TooLargeError(told)
    if (repair := _DISK.get(number)) is not None:
        return RefusedError(told, repair=repair.format(place=place))
    return UnavailableError(told) if number in _AWAY else TransientError(told)


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
