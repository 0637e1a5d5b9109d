"""The class of an error, which determines whether and when it is retried; its causes; groups of errors.

A write that fails as a whole has one exception for all its items. Decisions that depend only on the
exception are made once per group. Groups are formed by identity, since different exceptions may be
equal.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from .errors import (
    ErrorClass,
    KeyStopped,
    RefusedError,
    SinkError,
    SluicegateError,
    UnavailableError,
    WithdrawnError,
    classify,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping


Classifier = Callable[[BaseException], ErrorClass | None]
"""Returns the class of an error, or `None` for an unknown error."""

_NETWORK: tuple[tuple[type[BaseException], ErrorClass], ...] = (
    (ConnectionRefusedError, ErrorClass.UNAVAILABLE),
    (socket.gaierror, ErrorClass.UNAVAILABLE),
    (ConnectionError, ErrorClass.TRANSIENT),
    (TimeoutError, ErrorClass.TRANSIENT),
    (EOFError, ErrorClass.TRANSIENT),
)


def classify_network(error: BaseException) -> ErrorClass | None:
    """Classify an operating-system network error; `None` for other errors.

    Refused connections and names that do not resolve are `UNAVAILABLE`; other broken connections
    are `TRANSIENT`. An exception raised from one of these (`raise ... from`) has its class.
    """
    for link in causes(error):
        for kind, answer in _NETWORK:
            if isinstance(link, kind):
                return answer
    return None


def classified_by_cause(error: BaseException, class_of: Classifier) -> ErrorClass | None:
    """Return the class of the first cause that our own types or `class_of` know."""
    for link in causes(error):
        own = classify(link)
        if own is not ErrorClass.UNLISTED:
            return own
        if (answer := class_of(link)) is not None:
            return answer
    return None


def first_of(*classifiers: Classifier) -> Classifier:
    """Combine classifiers into one; the first that knows an error decides."""
    return partial(_first_answer, classifiers)


def first_answer(error: BaseException, *classifiers: Classifier | None) -> ErrorClass | None:
    """Return the class from the first classifier that knows the error; `None` if none does."""
    return _first_answer(classifiers, error)


def classified(error: BaseException, *classifiers: Classifier | None) -> ErrorClass:
    """Return the class by these classifiers, by Sluicegate's types, or as a network error;
    otherwise `UNLISTED`.
    """
    if isinstance(error, (KeyStopped, WithdrawnError)):
        return ErrorClass.STOPPED
    if (answer := _first_answer(classifiers, error)) is not None:
        return answer
    own = classify(error)
    if own is not ErrorClass.UNLISTED:
        return own
    return classify_network(error) or own


def _first_answer(
    classifiers: Iterable[Classifier | None], error: BaseException
) -> ErrorClass | None:
    for classifier in classifiers:
        if classifier is not None and (answer := classifier(error)) is not None:
            return answer
    return None


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


class ErrorGroup(NamedTuple):
    """One exception, and the indices of the items that failed with it."""

    error: BaseException
    indices: Collection[int]


def by_error(errors: Mapping[int, BaseException]) -> list[ErrorGroup]:
    """Group errors; the groups are in the order of their first items."""
    alone = distinct(errors.values())
    if len(alone) > 1:
        return _groups(errors)
    return [ErrorGroup(error, errors.keys()) for error in alone]


def _groups(errors: Mapping[int, BaseException]) -> list[ErrorGroup]:
    found: dict[int, tuple[BaseException, list[int]]] = {}
    for index, error in errors.items():
        known = found.get(id(error))
        if known is None:
            found[id(error)] = (error, [index])
        else:
            known[1].append(index)
    return [ErrorGroup(error, indices) for error, indices in found.values()]
