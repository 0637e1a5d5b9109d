"""The chain of causes of an error; the distinct errors of a batch."""

from __future__ import annotations

from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, TypeVar

from .errors import RefusedError, SinkError, SluicegateError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ErrorT = TypeVar("ErrorT", bound=BaseException)
SinkErrorT = TypeVar("SinkErrorT", bound=SinkError)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error`, its `__cause__`, the cause's cause and so on; each once, even in a cycle."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def cause_name(error: BaseException) -> str:
    """Return the class name of the first cause that is not a Sluicegate error; empty without
    any.
    """
    behind = (link for link in causes(error) if link is not error)
    return next(
        (type(link).__name__ for link in behind if not isinstance(link, SluicegateError)), ""
    )


def code_of(error: BaseException) -> str:
    """Return the SQLSTATE or HTTP status of `error` or of one of its causes; empty without any."""
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
    """Return each error object once, in order; a batch that failed as a whole has only one."""
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
    """Return `made` with its cause, a `summary` for logs, and an outage's `retry_after`."""
    made.__cause__ = cause
    if summary is not None and isinstance(made, SinkError):
        summarized(made, summary)
    if retry_after is not None and isinstance(made, UnavailableError):
        made.retry_after = retry_after
    return made


def summarized(made: SinkErrorT, summary: str) -> SinkErrorT:
    """Set the text that log lines show instead of the message; return `made`."""
    made.summary = summary
    return made


def of_item(error: BaseException) -> BaseException:
    """Mark a refusal as the destination's separate answer for one item of several."""
    if not isinstance(error, RefusedError) or error.of_item:
        return error
    text = str(error).removesuffix(f"; to repair: {error.repair}")
    return caused(RefusedError(text, repair=error.repair, of_item=True), error.__cause__)
