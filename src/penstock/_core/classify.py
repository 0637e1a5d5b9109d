"""What an error means for the next try, where the sink does not say."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from .errors import ErrorClass, classify

if TYPE_CHECKING:
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

    Refused connections and names that do not resolve mean that nobody is there; other broken connections may work next time.
    """
    for kind, answer in _NETWORK:
        if isinstance(error, kind):
            return answer
    return None


def classified(error: BaseException, *classifiers: Classifier | None) -> ErrorClass:
    """Ask each classifier in turn, then our own types, then the network's; an exception nobody knows is `UNLISTED`."""
    for classifier in classifiers:
        answer = None if classifier is None else classifier(error)
        if answer is not None:
            return answer
    own = classify(error)
    if own is not ErrorClass.UNLISTED:
        return own
    return classify_network(error) or own
