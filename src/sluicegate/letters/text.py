"""Safe output of untrusted text: no control characters, bidirectional marks or passwords. Pure."""

from __future__ import annotations

import codecs
import json
import re

_SECRETS = (
    (
        re.compile(r"([A-Za-z][\w+.-]*):/(?:.*@)?[^\s'\"]*", re.DOTALL),
        r"\1://***",
    ),  # a URL, up to and beyond its last @
    (re.compile(r"[^\s'\"]*:.*@", re.DOTALL), "***@"),
    (
        re.compile(r"(pass\w*|pwd|secret|token)(\s*=\s*|%3d)('[^']*'|[^\s&]*)", re.IGNORECASE),
        r"\1=***",
    ),
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
    return "".join(each if each == "\n" or each.isprintable() else _unit(each) for each in text)


def without_secrets(text: str) -> str:
    """Hide every possible password of a DSN, well-formed or not; this may hide more."""
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


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
