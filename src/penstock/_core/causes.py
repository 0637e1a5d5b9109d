"""An error and what it was raised from."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterator

ErrorT = TypeVar("ErrorT", bound=BaseException)


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, its `__cause__`, the cause's cause and so on; each once, even where they go
    round.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def caused(made: ErrorT, cause: BaseException, *, summary: str | None = None) -> ErrorT:
    """Return `made` as if raised from `cause`; `summary` is a sink error's text for log lines."""
    made.__cause__ = cause
    if summary is not None and isinstance(made, SinkError):
        made.summary = summary
    return made
