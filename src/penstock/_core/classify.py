"""What an error means for the next try, where the sink does not say."""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING

from .errors import ErrorClass, KeyStopped, classify

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
    """The class of an error of the operating system's network; `None` for others.

    Refused connections and names that do not resolve mean that nobody is there; other broken
    connections may work next time. An exception that was raised from one of these (`raise ...
    from`) has its class.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        for kind, answer in _NETWORK:
            if isinstance(link, kind):
                return answer
        seen.add(id(link))
        link = link.__cause__
    return None


def first_of(*classifiers: Classifier) -> Classifier:
    """One classifier of several: each is asked in turn, and the first that knows the error
    decides.
    """
    return partial(_first_answer, classifiers)


def _first_answer(classifiers: Iterable[Classifier], error: BaseException) -> ErrorClass | None:
    for classifier in classifiers:
        answer = classifier(error)
        if answer is not None:
            return answer
    return None


def classified(error: BaseException, *classifiers: Classifier | None) -> ErrorClass:
    """Ask each classifier in turn, then our own types, then the network's; an exception nobody
    knows is `UNLISTED`.
    """
    if isinstance(error, KeyStopped):
        return ErrorClass.STOPPED
    answer = _first_answer(
        (classifier for classifier in classifiers if classifier is not None), error
    )
    if answer is not None:
        return answer
    own = classify(error)
    if own is not ErrorClass.UNLISTED:
        return own
    return classify_network(error) or own
