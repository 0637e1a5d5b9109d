"""The origin of a batch: its id, why and when it was sealed, and by which batcher."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable


class Reason(enum.Enum):
    """Why a batch was sealed; exactly one per batch."""

    __hash__ = object.__hash__  # one C call; Enum's own hash is Python code

    SIZE = "size"
    BYTES = "bytes"
    TIME = "time"
    MANUAL = "manual"
    SHUTDOWN = "shutdown"
    SHUTDOWN_REQUEST = "shutdown_request"
    PRESSURE = "pressure"


class _Facts:
    """A `Lineage` under construction, with the same slots. Assigning them before the change of class
    is three times as fast.
    """

    __slots__ = ("id", "is_replay", "name", "oldest_at", "reason", "sealed_at", "tenant")

    def __init__(  # noqa: PLR0917  # keyword arguments would double its time
        self,
        batch_id: str,
        reason: Reason,
        name: str,
        oldest_at: float | None,
        sealed_at: float | None,
        tenant: object,
    ) -> None:
        self.id = batch_id
        self.reason = reason
        self.name = name
        self.oldest_at = oldest_at
        self.sealed_at = sealed_at
        self.tenant = tenant
        self.is_replay = False
        self.__class__ = Lineage  # noqa: PLE0237  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage(_Facts):
    """The facts shared by a sealed batch and its derived batches. Times are monotonic seconds."""

    id: str = field(default_factory=lambda: os.urandom(16).hex())
    reason: Reason = Reason.MANUAL
    name: str = ""
    oldest_at: float | None = None
    sealed_at: float | None = None
    tenant: object = None
    is_replay: bool = False
    """Whether the items are replayed dead letters; failing again writes no new letter."""


sealed_lineage = cast("Callable[[str, Reason, str, float, float, object], Lineage]", _Facts)
"""Creates the lineage from id, reason, name, `oldest_at`, `sealed_at` and tenant."""
