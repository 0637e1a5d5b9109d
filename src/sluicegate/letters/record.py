"""The record of a dead letter, as the `DeadLetter` decorator writes it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from .._core.logs import storable
from .._core.public import publish
from .._core.values.encoding import MakesForm, to_json
from .items import stored

if TYPE_CHECKING:
    from datetime import datetime

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRecord(MakesForm, Generic[T]):
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
        "cause_type",
        "code",
        "item_form",
    )
    """The columns of `as_row`."""

    item: T
    error_type: str
    """The name of the exception's class."""
    error_class: str
    """The class of the error: `permanent`, `transient`, `deadlock`, `unlisted`, `unknown`, or of an
    outage that was given up: `unavailable`, `refused` or `throttle`.
    """
    message: str
    attempts: int
    """Number of failed attempts."""
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
    """Whether the item was not attempted, but parked behind a failed item of its key
    (`Batcher(on_key_failure="park")`).
    """

    cause_type: str = ""
    """The class name of the error that caused Sluicegate's own, such as asyncpg's
    `NotNullViolationError`; empty without one.
    """
    code: str = ""
    """The SQLSTATE or HTTP status, such as `23502` or `422`; empty without one."""

    def as_dict(self) -> dict[str, Any]:
        """Return the record as a dictionary, with times in ISO 8601 and the item unchanged."""
        times = {"first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat()}
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, **times}

    def as_json(self) -> dict[str, Any]:
        """Return the record as a dictionary that JSON can encode, for any item.

        `item_form` is `plain` for an item that JSON represents directly, `marked` if it contains
        marks of exact values, such as `{"$base64": ...}`, and `repr` if a part of it is only stored
        as its `repr`, so that it cannot be replayed.
        """
        item, form = stored(self.item)
        found = {**self.as_dict(), "item": item, "tenant": stored(self.tenant).value}
        texts = {name: storable(text) for name, text in found.items() if isinstance(text, str)}
        return {**found, **texts, "item_form": form}

    def as_row(self) -> tuple[Any, ...]:
        """Return the record's values in the order of `COLUMNS`, for a table: the item and the
        tenant as JSON text, texts without NUL.
        """
        found = self.as_json()
        texts = {
            name: text.replace("\0", "\\x00")
            for name, text in found.items()
            if isinstance(text, str)
        }
        tenant = None if self.tenant is None else to_json(found["tenant"]).decode()
        values = {"item": to_json(found["item"]).decode(), "tenant": tenant}
        times = {"first_at": self.first_at, "last_at": self.last_at}
        row = {**found, **texts, **values, **times}
        return tuple(row[name] for name in self.COLUMNS)


publish("sluicegate.sinks", DeadLetterRecord)
