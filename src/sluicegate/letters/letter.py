"""A dead letter as it is written, and as it is read from a store with the state of its replay. Pure.

`item_form` is the format of a letter as well: a change that older releases cannot read gets a new form, and
they leave such a letter as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from .._core.errors import PermanentError
from .._core.logs import storable
from .._core.public import publish
from .._core.values.encoding import MakesForm, to_json
from .items import FORMS, MARKED, PLAIN, restored, stored

if TYPE_CHECKING:
    from collections.abc import Mapping


T = TypeVar("T")

PENDING, INTERRUPTED, REPLAYED = STATES = ("pending", "interrupted", "replayed")
ERROR = ("error_type", "error_class", "message", "cause_type", "code")
"""The fields of the last error. A replay replaces all of them."""
TEXTS = (*ERROR, "batcher", "batch_id", "trace_id", "item_key", "item_form")
_MOST_ATTEMPTS = 2**31 - 2
"""One more still fits a 32-bit column."""


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


class NoLetterError(ValueError):
    """A record that is not a dead letter. The message gives the reason, without any content."""


class ReplayLane(NamedTuple):
    """The scope of ordering: a key of one tenant in one batcher."""

    key: str
    tenant: str
    batcher: str

    def __str__(self) -> str:
        return self.key if self.tenant == "null" else f"{self.key} of tenant {self.tenant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A `DeadLetterRecord` read from a store. The item is decoded JSON, with marks as stored."""

    key: str
    item: Any
    first_at: datetime
    last_at: datetime
    error_type: str = ""
    error_class: str = ""
    message: str = ""
    attempts: int = 0
    batcher: str = ""
    batch_id: str = ""
    tenant: Any = None
    trace_id: str | None = None
    maybe_delivered: bool = False
    item_key: str | None = None
    parked_behind: bool = False
    cause_type: str = ""
    code: str = ""
    item_form: str = PLAIN
    state: str = PENDING
    """`interrupted`: a replay was interrupted while this letter was in flight, so it may have been
    delivered.
    """
    replay: str | None = None
    """The batch id of its last replay."""
    outcome: str | None = None
    """The outcome of its last replay."""

    @property
    def may_be_delivered(self) -> bool:
        """Whether it may have been delivered already."""
        return self.maybe_delivered or self.state == INTERRUPTED

    @property
    def replayable(self) -> bool:
        """Whether the whole item is known; `False` if a part of it is only a `repr`."""
        return self.item_form in {PLAIN, MARKED}

    def original(self) -> Any:
        """Return the item with marked values restored.

        Raises `PermanentError` if it is not replayable, and `ValueError` for a malformed mark.
        """
        if not self.replayable:
            raise PermanentError("a part of the item is known only by its repr")
        return self.item if self.item_form == PLAIN else restored(self.item)

    @property
    def lane(self) -> ReplayLane | None:
        """The scope of its ordering; `None` for an item without a key."""
        return (
            None
            if self.item_key is None
            else ReplayLane(self.item_key, json.dumps(self.tenant, sort_keys=True), self.batcher)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return its fields, with times as text."""
        times = {"first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat()}
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, **times}

    def after(self, told: Mapping[str, Any]) -> Letter:
        """Return the letter with the notes of a replay applied."""
        known = {
            name: told[name]
            for name in ("state", "replay", "outcome", "attempts", *ERROR)
            if told.get(name) is not None
        }
        if told.get("last_at") is not None:
            known["last_at"] = moment(told["last_at"])
        return replace(self, **known)


def letter_in(line: bytes) -> Letter:
    """Decode a line. Raises `NoLetterError`."""
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError:
        raise NoLetterError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise NoLetterError(f"not JSON ({error.msg} at column {error.colno})") from None
    except ValueError:
        raise NoLetterError("a number with too many digits") from None
    except RecursionError:
        raise NoLetterError("nested too deeply") from None
    return letter_of(record)


def key_in(line: bytes) -> str | None:
    """Return the key of the letter in a line; `None` if the line is not a letter."""
    try:
        return letter_in(line).key
    except NoLetterError:
        return None


def letter_of(record: object) -> Letter:
    """Check a decoded record and convert it to a letter. Raises `NoLetterError` if it is
    not one.
    """
    if not isinstance(record, dict):
        raise NoLetterError("not an object")
    found = cast("dict[str, Any]", record)
    missing = [
        name for name in ("key", "item", "attempts", "first_at", "last_at") if name not in found
    ]
    if missing:
        raise NoLetterError(f"no {', '.join(missing)}")
    texts = {name: found[name] for name in ("key", *TEXTS) if found.get(name) is not None}
    wrong = [
        name
        for name, text in texts.items()
        if not isinstance(text, str) or not _has_no_surrogate(text)
    ]
    attempts = found["attempts"]
    if type(attempts) is not int or not 0 <= attempts <= _MOST_ATTEMPTS:
        wrong.append("attempts")
    times = {name: _moment(found[name]) for name in ("first_at", "last_at")}
    wrong += [name for name, time in times.items() if time is None]
    if texts.get("item_form", PLAIN) not in FORMS:
        raise NoLetterError(
            "its item has a form that this release does not know; use the release that wrote it, or "
            "a later one"
        )
    if wrong or "key" not in texts or not _has_text(found.get("tenant")):
        raise NoLetterError(f"invalid value: {', '.join(wrong) or 'tenant'}")
    return Letter(
        item=found["item"],
        attempts=attempts,
        tenant=found.get("tenant"),
        maybe_delivered=bool(found.get("maybe_delivered")),
        parked_behind=bool(found.get("parked_behind")),
        **times,
        **texts,
    )


def _has_no_surrogate(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)


def _has_text(tenant: object) -> bool:
    """Return whether it has a JSON text, by which tenants are compared."""
    try:
        json.dumps(tenant, sort_keys=True)
    except (RecursionError, TypeError, ValueError):
        return False
    return True


def _moment(value: Any) -> Any:
    """Return the time; `None` if the value is not one."""
    try:
        return moment(value).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def moment(text: str | datetime) -> datetime:
    """Parse a stored time; without a time zone it is UTC. Raises `ValueError`."""
    made = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    return made if made.tzinfo is not None else made.replace(tzinfo=UTC)


def _names(tenant: object) -> tuple[str, ...]:
    """Return the ways to write a tenant: as text, or as JSON."""
    return str(tenant), json.dumps(tenant), json.dumps(tenant, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions for letters; a letter is selected if it meets all of them."""

    states: frozenset[str] = frozenset(STATES)
    letters: tuple[str, ...] = ()
    """Prefixes of letters' own keys."""
    keys: tuple[str, ...] = ()
    """Item keys, as text."""
    batcher: str | None = None
    tenant: str | None = None
    error_type: str | None = None
    """The class of the error, or of its cause."""
    error_class: str | None = None
    code: str | None = None
    """An SQLSTATE or HTTP status."""
    message: str | None = None
    """Text contained in the message."""
    since: datetime | None = None
    until: datetime | None = None
    only: frozenset[str] | None = None
    """Complete keys of letters."""

    def has(self, letter: Letter) -> bool:
        """Return whether a letter is selected. Times are those of the last attempt; `until` is
        exclusive.
        """
        return (
            letter.state in self.states
            and self.has_key_of(letter)
            and (self.only is None or letter.key in self.only)
            and (not self.letters or letter.key.startswith(self.letters))
            and self.error_type in {None, letter.error_type, letter.cause_type}
            and self.code in {None, letter.code}
            and self.error_class in {None, letter.error_class}
            and (self.message is None or self.message in letter.message)
            and (self.since is None or letter.last_at >= self.since)
            and (self.until is None or letter.last_at < self.until)
        )

    def has_key_of(self, letter: Letter) -> bool:
        """Return whether other letters of this one's key may be selected."""
        return (
            (not self.keys or letter.item_key in self.keys)
            and self.batcher in {None, letter.batcher}
            and (
                self.tenant is None
                or (letter.tenant is not None and self.tenant in _names(letter.tenant))
            )
        )
