"""JetStream's answers to published messages. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._clients.nats.errors import NO_RESPONDERS, WRONG_LAST_SEQUENCE, api_error
from ..._core.errors import UnknownOutcomeError, UnverifiableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..._core.errors import SinkError


class PublishAck(NamedTuple):
    """The place of a stored message, as the detail of its receipt."""

    stream: str
    sequence: int
    duplicate: bool = False
    """Whether the stream had a message with this id already; it was not stored again."""


class NoStream:
    """No stream takes the subject."""


NO_STREAM = NoStream()
Answer = PublishAck | NoStream | UnknownOutcomeError
Refusal = tuple[int, int, str]
"""The `code`, `err_code` and `description` of an error."""


def answer_of(data: bytes, headers: Mapping[str, str] | None) -> Answer | Refusal:
    """What the reply to a publish says."""
    if not data and headers and headers.get("Status") == NO_RESPONDERS:
        return NO_STREAM
    try:
        told: Any = json.loads(data)
        if (error := told.get("error")) is not None:
            return int(error["code"]), int(error["err_code"]), str(error["description"])
        return PublishAck(str(told["stream"]), int(told["seq"]), bool(told.get("duplicate")))
    except (ValueError, LookupError, TypeError, AttributeError):
        return UnknownOutcomeError(
            "the reply is not one of JetStream; does another subscriber answer on the subject?"
        )


def refused(refusal: Refusal, subject: str, *, maybe_applied: bool) -> SinkError:
    """The error of a message that JetStream has not stored.

    An earlier try of its item that was stored has moved the sequence which it expects.
    """
    code, err_code, description = refusal
    if maybe_applied and err_code in WRONG_LAST_SEQUENCE:
        return UnverifiableError(
            f"the subject {subject!r} has another last sequence ({description}), perhaps that of an "
            "earlier try of this message"
        )
    return api_error(f"the subject {subject!r}", code, err_code, description)
