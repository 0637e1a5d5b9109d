"""The classification of Redis errors. Pure; loads no client.

1. Redis gives the reason as the first word of its message. redis-py removes it from the errors for
   which it has classes.
2. An error that only an operator can repair is refused: a login, a permission, a key of another
   type, full memory, a disk that cannot be written to, a replica instead of its master. Good items
   wait.
3. An item is at fault only if the message is one of those about ids and sizes. Any other message
   without a word of its own, such as that of a quota or of a proxy, is a refusal, too.
4. A temporary condition is unavailable: a server that loads its data, runs a script, or has lost
   its master or its replicas.
5. A connection that is lost before the reply leaves the command unknown. Before the connection is
   made, nothing was sent.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from .._core.classify import caused, causes, classified_by_cause, summarized
from .._core.errors import (
    ErrorClass,
    PermanentError,
    RefusedError,
    TooLargeError,
    TransientError,
    UnavailableError,
    classify,
)
from .._core.text import text_of

if TYPE_CHECKING:
    from .._core.errors import SinkError

_CODES = {
    "AskError": "ASK",
    "AuthenticationError": "WRONGPASS",
    "AuthenticationWrongNumberOfArgsError": "WRONGPASS",
    "AuthorizationError": "WRONGPASS",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}
"""The first words that redis-py replaces with classes."""
_CLUSTER = (
    "give the address of a single server or of Sentinel's master; nodes of a Redis Cluster are not "
    "followed"
)
_REPAIRS = {
    "ASK": _CLUSTER,
    "CROSSSLOT": _CLUSTER,
    "MISCONF": "enable the server to write its snapshots to disk again; its log contains the cause",
    "MOVED": _CLUSTER,
    "NOAUTH": "give the user and password that the server requires, in the URL",
    "NOPERM": "allow the user the commands and the key of this sink (ACL SETUSER)",
    "OOM": "raise the server's maxmemory, or free memory: trim the stream or list with maxlen=",
    "READONLY": "give the address of the master; this server is a replica",
    "WRONGPASS": "give the user and password that the server accepts, in the URL",
    "WRONGTYPE": "give another name, or remove the existing key",
}
_TEMPORARY = frozenset({"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN"})
DROPS = frozenset({"ASK", "MOVED", "READONLY"})
"""After these errors, the server's name may resolve to another server, so the connection is
reopened.
"""
_KNOWN = _REPAIRS.keys() | _TEMPORARY
_NO_LOGIN = "Authentication required."
_NO_LOGIN_YET = "Protocol error: unauthenticated"
"""The beginning of the reply to a large command without a login. The server then closes the
connection.
"""
_NO_HIGHER_ID = "equal or smaller than"
_NO_ID_LEFT = "The stream has exhausted"
_QUOTE = ", with args beginning with"
"""The text after this quotes an item."""
_UNKNOWN_COMMAND = ("unknown command", "unknown subcommand")
_OF_ITEM = (
    "The ID specified in XADD",
    "Invalid stream ID",
    "Elements are too large",
    "string exceeds maximum allowed size",
)
"""The beginnings of the messages for which an item is at fault."""


_NAMES = {
    "MasterNotFoundError": ErrorClass.UNAVAILABLE,
    "SlaveNotFoundError": ErrorClass.UNAVAILABLE,
    "MaxConnectionsError": ErrorClass.UNAVAILABLE,
    "ExternalAuthProviderError": ErrorClass.UNAVAILABLE,
    "SlotNotCoveredError": ErrorClass.UNAVAILABLE,
    "ConnectionError": ErrorClass.UNKNOWN,
    "TimeoutError": ErrorClass.UNKNOWN,
    "InvalidResponse": ErrorClass.UNKNOWN,
    "DataError": ErrorClass.PERMANENT,
    "WatchError": ErrorClass.TRANSIENT,
}
"""redis-py's own errors, by class name."""
_ANSWERS = frozenset(
    {"ResponseError", "AuthenticationError", "AuthorizationError", "BusyLoadingError"}
)
"""redis-py's classes for the server's error replies."""
_NOT_SENT = ("connecting to", "max number of clients reached")
"""Messages about a connection that was not made."""


def classify_redis(error: BaseException) -> ErrorClass | None:
    """Classify a redis-py error by the first word of the server's message; `None` for any other
    error.

    A login, a permission, a key of another type, full memory and a replica are `REFUSED`. A server
    that loads its data, runs a script or lacks its master or replicas is `UNAVAILABLE`, as is one
    that cannot be reached. A connection lost before the reply, and a timeout, are `UNKNOWN`. A
    value that is too large, or an invalid id, is `PERMANENT`.

    Looks through `__cause__`. Errors of Sluicegate keep their own class. Does not suspend, and
    imports no client.
    """
    return classified_by_cause(error, _class_of)


def _class_of(error: BaseException) -> ErrorClass | None:
    names = [each.__name__ for each in type(error).__mro__ if each.__module__.startswith("redis.")]
    if not _ANSWERS.isdisjoint(names):
        return classify(refusal(error, "Redis"))
    is_lost = "ConnectionError" in names or "TimeoutError" in names
    if is_lost and any(each in text_of(error) for each in _NOT_SENT):
        return ErrorClass.UNAVAILABLE
    return next((_NAMES[each] for each in names if each in _NAMES), None)


def code_of(error: BaseException) -> str:
    """The first word of the error's message."""
    text = text_of(error)
    known = _CODES.get(type(error).__name__)
    if known is not None:
        return "NOAUTH" if text == _NO_LOGIN else known
    first = text.partition(" ")[0]
    if first in _KNOWN:
        return first
    return "NOAUTH" if text.removeprefix("ERR ").startswith(_NO_LOGIN_YET) else "ERR"


def is_low_id(error: BaseException) -> bool:
    """Whether the stream already has this id or a higher one."""
    return _NO_HIGHER_ID in text_of(error)


def ends_connection(error: BaseException) -> bool:
    """Whether the server closes the connection without executing later commands."""
    return text_of(error).removeprefix("ERR ").startswith("Protocol error")


def refusal(error: BaseException, where: str) -> SinkError:
    """The error of a command that Redis has refused; `where` identifies the command."""
    code = code_of(error)
    text = text_of(error).partition(_QUOTE)[0]
    message = text.removeprefix("ERR ")
    told = f"{where}: {text if text.startswith(code) else f'{code} {text}'}"
    made: SinkError
    if code in _TEMPORARY:
        made = UnavailableError(told)
    elif code in _REPAIRS:
        made = RefusedError(told, repair=_REPAIRS[code])
    elif message.startswith(_UNKNOWN_COMMAND):
        made = RefusedError(told, repair="use a server that has the command")
    elif message.startswith(_NO_ID_LEFT):
        made = RefusedError(
            told, repair="give another name; an entry of the stream has the last id"
        )
    elif ends_connection(error):
        made = TooLargeError(told)
    elif message.startswith(_OF_ITEM):
        made = PermanentError(told)
    else:
        made = RefusedError(told, repair="correct what the message names, at the server or a proxy")
    return summarized(caused(made, error), told)


def connecting_error(error: BaseException, place: str) -> SinkError:
    """The error of a connection that could not be made; nothing was sent."""
    code, text = code_of(error), text_of(error)
    told = f"{place}: {text}"
    made: SinkError
    if any(isinstance(link, ssl.SSLCertVerificationError) for link in causes(error)) or (
        "CERTIFICATE_VERIFY_FAILED" in text
    ):
        made = RefusedError(told, repair="trust the server's certificate, with client_options")
    elif code in _REPAIRS:
        made = RefusedError(told, repair=_REPAIRS[code])
    elif type(error).__name__ == "ResponseError":  # such as a database that does not exist
        made = RefusedError(told, repair="correct the URL or the client_options")
    else:
        made = UnavailableError(told)
    return caused(made, error)


def not_executed(error: SinkError) -> TransientError:
    """The error of items after one for which the server closed the connection."""
    return caused(TransientError("not executed, because the server closed the connection"), error)
