"""The classes of errors of NATS. Loads no client."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..._core.classify import classified_by_cause

if TYPE_CHECKING:
    from ..._core.errors import ErrorClass


def classify_nats(error: BaseException) -> ErrorClass | None:
    """Classify an error of nats-py, or an answer of JetStream; `None` for any other exception.

    A refused login, a missing permission, a subject without a stream and an account's limits are
    `REFUSED`. A lost connection, and a stream without a leader, are `UNAVAILABLE`. A full stream,
    and too many publishes without an answer, are `THROTTLE`. A timeout is `UNKNOWN`: the requested
    action may have been performed. A message that is too large, or that JetStream refuses, is
    `PERMANENT`.

    Looks through `__cause__`. Errors of Sluicegate keep their own class. Does not suspend.
    """
    return classified_by_cause(error, _class_of)


def _class_of(error: BaseException) -> ErrorClass | None:
    if "nats" not in sys.modules:  # then no error is one of nats-py
        return None
    from .errors import class_of_error

    return class_of_error(error)
