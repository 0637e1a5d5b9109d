"""`str()` and `repr()` of foreign objects, which may raise; text that may hold a password."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}:/)|(?P<name>pass\w{0,99}|pwd|secret|token)\s{0,99}=",
    re.IGNORECASE,
)
"""Every part has a limit, so that a long text takes no longer than its length."""
_LITERAL = re.compile(r"""(?P<quote>['"])((?:\\.|(?!(?P=quote)).)*)(?P=quote)""", re.DOTALL)


def hide(text: str) -> str:
    """Hide everything from the first URL, login or password on, well-formed or not."""
    found = _SECRET.search(text)
    start = len(text) if found is None else found.start()
    login = re.search(r":\S", text[: max(0, text.rfind("@"))])
    if login is not None and (begin := word_start(text, login.start(), ":")) < start:
        return f"{text[:begin]}..."
    if found is None:
        return text
    return f"{text[:start]}{found['scheme'] or found['name'] + '='}{'/' * bool(found['scheme'])}..."


def word_start(text: str, end: int, also: str = "") -> int:
    """Return where the word before `end` begins: behind a space, a quote or a character in `also`."""
    return end - len(re.split(rf"[\s'\"{also}]", text[:end])[-1])


def hide_in_repr(told: str) -> str:
    """Hide these in every literal of a `repr`; outside of literals, hide the rest of it."""
    shown, end = "", 0
    for found in _LITERAL.finditer(told):
        between = told[end : found.start()]
        shown += hide(between)
        if hide(between) != between:
            return shown
        shown += f"{found['quote']}{hide(found[2])}{found['quote']}"
        end = found.end()
    return shown + hide(told[end:])


def text_of(thing: object) -> str:
    """Return `str(thing)`, or a note instead if that raises."""
    try:
        return f"{thing!s}"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as broken:
        why = f"its __str__ raised {type(broken).__name__}"
        return f"<{type(thing).__name__}, whose text cannot be shown: {why}>"


def repr_of(thing: object) -> str:
    """Return `repr(thing)`, or a note instead if that raises."""
    try:
        return f"{thing!r}"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as broken:
        return f"<{type(thing).__name__}, whose repr raised {type(broken).__name__}>"
