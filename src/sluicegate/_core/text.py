"""`str()` and `repr()` of foreign objects, which may raise; text that may hold a password."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*:/).*|[^\s:'\"]*:[^\s].*@.*|"
    r"(?P<name>pass\w*|pwd|secret|token)\s*=.*",
    re.DOTALL | re.IGNORECASE,
)
_LITERAL = re.compile(r"""(?P<quote>['"])((?:\\.|(?!(?P=quote)).)*)(?P=quote)""", re.DOTALL)


def hide(text: str) -> str:
    """Hide everything from the first URL, login or password on, well-formed or not."""
    found = _SECRET.search(text)
    if found is None:
        return text
    kept = (
        f"{found['scheme']}/" if found["scheme"] else f"{found['name']}=" if found["name"] else ""
    )
    return f"{text[: found.start()]}{kept}..."


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
