"""The meaning of JetStream responses, as errors that give a remedy. Loads no client.

1. A publish that is acknowledged with an error was not stored.
2. An error code of JetStream has one of five meanings: the message is invalid; the destination
   refuses everything until an operator repairs it; it is full and may be emptied by its consumers;
   it is temporarily unavailable; or the error is transient. An unlisted code is permanent below
   500, otherwise transient.
"""

from __future__ import annotations

from .._core.errors import (
    PermanentError,
    RefusedError,
    SinkError,
    ThrottledError,
    TransientError,
    UnavailableError,
)

NO_RESPONDERS = "503"
"""The status of a reply if there is no subscriber."""

ENABLE = "enable JetStream in the server's configuration (jetstream { }) and for the user's account"
_ROOM = "raise the limits of JetStream, or remove messages or streams"
_REPAIRS = {
    10002: _ROOM,
    10014: "create the consumer",
    10023: _ROOM,
    10026: "raise the limit of consumers, or remove some",
    10027: "raise the limit of streams, or remove some",
    10028: _ROOM,
    10035: ENABLE,
    10039: ENABLE,
    10047: _ROOM,
    10059: "create the stream",
    10060: "publish to subjects of the expected stream, or expect another one",
    10076: ENABLE,
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


def api_error(place: str, code: int, err_code: int, description: str) -> SinkError:
    """Return the error for a JetStream error response; nothing was applied.

    Args:
        place: the object of the request, for the message, such as `stream 'ORDERS'`.
        code: the response's `code`, like an HTTP status.
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


def no_stream(subject: str) -> RefusedError:
    """Return the error of a publish to a subject that no stream acknowledges."""
    repair = f"create a stream with the subject {subject!r}, or {ENABLE}"
    return RefusedError(f"no stream takes the subject {subject!r}", repair=repair)
