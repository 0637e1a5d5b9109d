"""The record of a dead letter, as the `DeadLetter` decorator writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from .._clients.encoding import to_json
from .._core.public import publish

if TYPE_CHECKING:
    from datetime import datetime

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRecord(Generic[T]):
    """A permanently failed item and its error.

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
    """The columns of `as_row`."""

    item: T
    error_type: str
    """The name of the exception's class."""
    error_class: str
    """`permanent`, `transient` (attempts exhausted), `unlisted` or `unknown`."""
    message: str
    attempts: int
    """The number of failed attempts."""
    first_at: datetime
    """The end of the first failed attempt (UTC)."""
    last_at: datetime
    """The end of the last failed attempt (UTC)."""
    batcher: str
    batch_id: str
    key: str
    """Equal in every record of this item's write, so that a store can skip duplicates."""
    tenant: object = None
    trace_id: str | None = None
    maybe_delivered: bool = False
    """Whether an attempt may have been applied."""
    item_key: str | None = None
    """The item's order key as text: a string unchanged, any other key as its `repr` after a colon.
    `None` without keys.
    """
    parked_behind: bool = False
    """Whether it was not attempted, but parked behind a failed item of its key
    (`Batcher(on_key_failure="park")`).
    """

    def as_dict(self) -> dict[str, Any]:
        """The record as a dictionary, with times in ISO 8601 and the item unchanged."""
        times = {"first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat()}
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, **times}

    def as_row(self) -> tuple[Any, ...]:
        """The record's values in the order of `COLUMNS`, for a table: the item and the tenant as
        JSON text, texts without NUL.

        Raises `TypeError` or `ValueError` for an item without a JSON form.
        """
        shown = {
            "item": to_json(self.item).decode(),
            "tenant": None if self.tenant is None else to_json(self.tenant).decode(),
            "message": self.message.replace("\0", "\\x00"),
        }
        return tuple(shown.get(name, getattr(self, name)) for name in self.COLUMNS)


publish("penstock", DeadLetterRecord)
