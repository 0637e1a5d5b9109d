"""The checked arguments of a source."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...._core import checks
from ...._core.checks import bad
from ...schema.opened import check_schema_name

if TYPE_CHECKING:
    from datetime import timedelta

EXTENSIONS = 3
"""Extensions of a lease within its duration, so that two may fail."""
SHORTEST_LEASE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The jobs to read, and how to read them."""

    queue: str
    schema: str
    group: str
    consumer: str
    lease: float
    per_key: int
    poll: float
    back_after: float
    ends: bool

    @property
    def extend_every(self) -> float:
        """Seconds between extensions of leases."""
        return self.lease / EXTENSIONS

    @classmethod
    def of(
        cls,
        queue: object,
        *,
        schema: str,
        group: str,
        consumer: str | None,
        lease: float | timedelta,
        per_key: int,
        poll: float | timedelta,
        back_after: float | timedelta,
        ends: bool,
    ) -> QueueOptions:
        """Check the arguments. Raises `ConfigError`."""
        seconds = checks.seconds("lease", lease, usual=checks.LONG_TIMEOUT)
        if seconds < SHORTEST_LEASE:
            raise bad("lease", lease, f"must be at least {SHORTEST_LEASE} s")
        return cls(
            queue=checks.text("queue", queue),
            schema=check_schema_name(schema),
            group=checks.text("group", group),
            consumer=_own_name() if consumer is None else checks.text("consumer", consumer),
            lease=seconds,
            per_key=checks.count("per_key", per_key),
            poll=checks.seconds("poll", poll, usual=checks.LONG_DELAY),
            back_after=checks.seconds(
                "back_after", back_after, zero=True, usual=checks.LONG_TIMEOUT
            ),
            ends=checks.flag("ends", ends),
        )


def _own_name() -> str:
    """Return a unique name by which operators can find the process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
