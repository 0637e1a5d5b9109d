"""The class of an error, which determines whether and when it is retried."""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING

from .causes import causes
from .errors import ErrorClass, KeyStopped, WithdrawnError, classify

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .sink import Classifier

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
