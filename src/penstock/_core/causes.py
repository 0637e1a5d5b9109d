"""An error and what it was raised from."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

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


def caused(made: ErrorT, cause: BaseException) -> ErrorT:
    """`made`, as if it had been raised from `cause`."""
    made.__cause__ = cause
    return made
