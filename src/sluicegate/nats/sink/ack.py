"""JetStream's replies to published messages. Pure."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core.errors import UnknownOutcomeError, UnverifiableError
from ..client.answers import NO_RESPONDERS, WRONG_LAST_SEQUENCE, api_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..._core.errors import SinkError


class PublishAck(NamedTuple):
    """The place of a stored message; the details of its item's receipt."""

    stream: str
    sequence: int
    duplicate: bool = False
    """Whether the stream already had a message with this id; it was not stored again."""


class NoStream:
    """No stream stores the subject."""


NO_STREAM = NoStream()


class Refusal(NamedTuple):
    """An error from JetStream."""

    code: int
    err_code: int
    description: str
    stream: str = ""
    """The stream that replied; empty if none did."""

    @property
    def is_wrong_last_sequence(self) -> bool:
        """Whether the message expected a different last sequence."""
        return self.err_code in WRONG_LAST_SEQUENCE

    @property
    def last_sequence(self) -> int | None:
        """The sequence of the subject's last message, if the error contains it."""
        found = _LAST.fullmatch(self.description)
        return None if found is None else int(found[1])


Answer = PublishAck | NoStream | Refusal | UnknownOutcomeError
_LAST = re.compile(r"wrong last sequence: (\d+)")


def answer_of(data: bytes, headers: Mapping[str, str] | None) -> Answer:
    """Parse the reply to a publish."""
    if not data and headers and headers.get("Status") == NO_RESPONDERS:
        return NO_STREAM
    try:
        told: Any = json.loads(data)
        if (error := told.get("error")) is not None:
            stream = str(told.get("stream", ""))
            return Refusal(
                int(error["code"]), int(error["err_code"]), str(error["description"]), stream
            )
        return PublishAck(str(told["stream"]), int(told["seq"]), bool(told.get("duplicate")))
    except (ValueError, LookupError, TypeError, AttributeError):
        return UnknownOutcomeError(
            "the reply is not from JetStream; does another subscriber reply on the subject?"
        )


def refused(refusal: Refusal, subject: str, *, maybe_applied: bool) -> SinkError:
    """The error of a message that JetStream has not stored.

    If an earlier attempt was stored, it has changed the sequence that this attempt expects.
    """
    if maybe_applied and refusal.is_wrong_last_sequence:
        return UnverifiableError(
            f"the subject {subject!r} has a different last sequence ({refusal.description}), "
            "perhaps that of an earlier attempt of this message"
        )
    code, err_code, description, _ = refusal
    return api_error(f"the subject {subject!r}", code, err_code, description)


def has_line(data: bytes, line: str) -> bool:
    """Whether the reply to a message request contains a message with this header line."""
    try:
        told: Any = json.loads(data)
        headers = base64.b64decode(told["message"].get("hdrs", "")).decode()
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return line in headers.split("\r\n")
