"""The record of a dead letter, as the `DeadLetter` decorator writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from .._clients.encoding import to_json

if TYPE_CHECKING:
    from datetime import datetime

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRecord(Generic[T]):
    """One item that failed for good, and why.

    `PostgresSink(..., columns=DeadLetterRecord.COLUMNS, row=DeadLetterRecord.as_row,
    on_conflict="ignore")` keeps records in a table.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "key",
        "item",
        "error_type",
        "error_class",
        "message",
        "attempts",
        "first_at",
        "last_at",
        "batcher",
        "batch_id",
        "tenant",
        "trace_id",
        "maybe_delivered",
        "item_key",
        "parked_behind",
    )
    """What `as_row` has values for."""

    item: T
    error_type: str
    """The name of the exception's class."""
    error_class: str
    """What the error means: `permanent`, `transient` (tries used up), `unlisted`, `unknown`."""
    message: str
    attempts: int
    """How many tries failed."""
    first_at: datetime
    """When the first of them ended (UTC)."""
    last_at: datetime
    """When the last of them ended (UTC)."""
    batcher: str
    batch_id: str
    key: str
    """The same for this item in every record of this write, so that a store can leave out what it
    has already.
    """
    tenant: object = None
    trace_id: str | None = None
    maybe_delivered: bool = False
    """Whether a try of it may have been applied."""
    item_key: str | None = None
    """The key that order is kept for, as text: a string as it is, any other key as its `repr`
    behind a colon. `None` without keys.
    """
    parked_behind: bool = False
    """Whether it was not tried, but came behind a failed item of its key
    (`Batcher(on_key_failure="park")`).
    """

    def as_dict(self) -> dict[str, Any]:
        """The record as a dictionary, times in ISO 8601; the item is left as it is."""
        times = {"first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat()}
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, **times}

    def as_row(self) -> tuple[Any, ...]:
        """The record's values in the order of `COLUMNS`, for a table: the item and the tenant as
        JSON in text, texts without NUL.

        Raises `TypeError` or `ValueError` for an item that JSON has no form for.
        """
        shown = {
            "item": to_json(self.item).decode(),
            "tenant": None if self.tenant is None else to_json(self.tenant).decode(),
            "message": self.message.replace("\0", "\\x00"),
        }
        return tuple(shown.get(name, getattr(self, name)) for name in self.COLUMNS)
