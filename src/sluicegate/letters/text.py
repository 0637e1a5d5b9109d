"""Safe output of untrusted text: no control characters, bidirectional marks or passwords. Pure."""

from __future__ import annotations

import codecs
import json
import re

from .._core.text import word_start

_URL = re.compile(r"([A-Za-z][\w+.-]{0,30}):/")
_REST_OF_URL = re.compile(rf"{_URL.pattern}[^\s'\"]*")
_OPTION = re.compile(
    r"(pass\w{0,99}|pwd|secret|token)(\s{0,99}=\s{0,99}|%3d)('[^']*'|[^\s&]*)", re.IGNORECASE
)


def printable(text: str) -> str:
    """Escape control characters, bidirectional marks and other unprintable characters."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def as_json(value: object, *, encoding: str | None, indent: int | None = None) -> str:
    """Encode `value` as printable JSON that decodes to the same value.

    Ignores `indent` if the value is nested too deeply for it.
    """
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=not _is_utf8(encoding))
    except RecursionError:
        text = json.dumps(value, ensure_ascii=not _is_utf8(encoding))
    if text.isprintable():  # one look, for lists of many letters
        return text
    return "".join(each if each == "\n" or each.isprintable() else _unit(each) for each in text)


def without_secrets(text: str) -> str:
    """Hide every possible password of a DSN, well-formed or not; this may hide more."""
    login, at, rest = text.rpartition("@")
    if at and (url := _URL.search(login)):
        text = login[: url.end()] + rest
    login, at, rest = _REST_OF_URL.sub(r"\1://***", text).rpartition("@")
    if at and (colon := login.find(":")) >= 0:
        login = login[: word_start(login, colon)] + "***"
    return _OPTION.sub(r"\1=***", login + at + rest)


def _unit(char: str) -> str:
    """Return the JSON escape of a character: a surrogate pair if it exceeds 16 bits."""
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(
        f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2)
    )


def _is_utf8(encoding: str | None) -> bool:
    try:
        return encoding is not None and codecs.lookup(encoding).name == "utf-8"
    except LookupError:
        return False
