"""`str()` and `repr()` of foreign objects, which may raise."""

from __future__ import annotations


def text_of(thing: object) -> str:
    """`str(thing)`, or a remark in its place where that raises."""
    try:
        return f"{thing!s}"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as broken:
        why = f"its __str__ raised {type(broken).__name__}"
        return f"<{type(thing).__name__}, whose text cannot be shown: {why}>"


def repr_of(thing: object) -> str:
    """`repr(thing)`, or a remark in its place where that raises."""
    try:
        return f"{thing!r}"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as broken:
        return f"<{type(thing).__name__}, whose repr raised {type(broken).__name__}>"
