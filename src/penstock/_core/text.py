"""`str()` and `repr()` of foreign objects, which may raise."""

from __future__ import annotations


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
