"""The checked arguments of `run_batch`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from ..._core import checks
from .batch_limits import ON_MISMATCH, BatchLimits

if TYPE_CHECKING:
    from datetime import timedelta

    from ..settings import ConsumerSettings
    from .batch_limits import OnMismatch


class BatchOptions(TypedDict, total=False):
    """The keywords of `Consumer.run_batch`, documented there."""

    size: int
    max_wait: float | timedelta | None
    max_bytes: int | None
    max_per_key: int | None
    on_mismatch: OnMismatch


def checked_limits(
    settings: ConsumerSettings,
    *,
    size: int = 500,
    max_wait: float | timedelta | None = 0.2,
    max_bytes: int | None = None,
    max_per_key: int | None = None,
    on_mismatch: OnMismatch = "terminate",
) -> BatchLimits:
    """Check the arguments of a consumer's `run_batch`. Raises `ConfigError`."""
    wait = checks.optional_seconds("max_wait", max_wait, zero=True, usual=checks.LONG_DELAY)
    limits = BatchLimits(
        size=checks.count("size", size),
        max_wait=_or_endless(wait),
        max_bytes=_or_endless(checks.optional_count("max_bytes", max_bytes)),
        max_per_key=_or_endless(checks.optional_count("max_per_key", max_per_key)),
        one_lane=settings.ordering == "partition",
        on_mismatch=checks.choice("on_mismatch", on_mismatch, ON_MISMATCH),
    )
    if wait is None and settings.max_in_flight < size:  # no batch would ever be full
        most = settings.max_in_flight
        rule = f"must be at most max_in_flight={most} of the consumer, unless there is a max_wait"
        raise checks.bad("size", size, rule)
    return limits


def _or_endless(value: float | None) -> float:
    return math.inf if value is None else value
