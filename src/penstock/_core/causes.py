"""An error and what it was raised from; the errors of a batch without repetitions."""

from __future__ import annotations

from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, TypeVar

from .errors import PenstockError, RefusedError, SinkError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ErrorT = TypeVar("ErrorT", bound=BaseException)
SinkErrorT = TypeVar("SinkErrorT", bound=SinkError)


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, its `__cause__`, the cause's cause and so on; each once, even in a cycle."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def cause_name(error: BaseException) -> str:
    """The class name of the first error behind `error` that is not Penstock's; empty if none is."""
    behind = (link for link in causes(error) if link is not error)
    return next((type(link).__name__ for link in behind if not isinstance(link, PenstockError)), "")


def code_of(error: BaseException) -> str:
    """The SQLSTATE or HTTP status of `error` or of an error behind it; empty if none has one."""
    return next((code for link in causes(error) if (code := _code(link))), "")


def _code(error: BaseException) -> str:
    try:
        state = getattr(error, "sqlstate", None)
        if isinstance(state, str):
            return state
        response = getattr(error, "response", None)
        found = (
            getattr(error, "status", None),
            getattr(error, "status_code", None),
            getattr(response, "status_code", None),
        )
    except Exception:  # raised by a property of a foreign exception
        return ""
    return next((str(int(each)) for each in found if isinstance(each, int)), "")


def distinct(errors: Collection[ErrorT]) -> tuple[ErrorT, ...]:
    """Each object among the errors once, in order: a batch that failed as a whole has only one."""
    first = next(iter(errors), None)
    if first is None:
        return ()
    if all(map(is_, errors, repeat(first))):  # a loop in C
        return (first,)
    return tuple({id(error): error for error in errors}.values())


def caused(
    made: ErrorT,
    cause: BaseException | None,
    *,
    summary: str | None = None,
    retry_after: float | None = None,
) -> ErrorT:
    """Return `made` as raised from `cause`, with a `summary` for logs and an outage's delay."""
    made.__cause__ = cause
    if summary is not None and isinstance(made, SinkError):
        summarized(made, summary)
    if retry_after is not None and isinstance(made, UnavailableError):
        made.retry_after = retry_after
    return made


def summarized(made: SinkErrorT, summary: str) -> SinkErrorT:
    """Return `made` with a text for log lines in place of its message."""
    made.summary = summary
    return made


def of_item(error: BaseException) -> BaseException:
    """A refusal that the destination has given for one item, while others had answers of their own."""
    if not isinstance(error, RefusedError) or error.of_item:
        return error
    text = str(error).removesuffix(f"; to repair: {error.repair}")
    return caused(RefusedError(text, repair=error.repair, of_item=True), error.__cause__)
