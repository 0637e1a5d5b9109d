"""One dead letter as it is stored, how far its replay has come, and which letters are meant. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

PENDING, INTERRUPTED, REPLAYED = STATES = ("pending", "interrupted", "replayed")
FIELDS = ("error_type", "error_class", "message", "batcher", "batch_id", "tenant", "trace_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A `DeadLetterRecord` that was read back. The item is what JSON made of it."""

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
    state: str = PENDING
    """`interrupted`: a replay was cut off while this letter was on its way, so it may have been delivered."""
    replay: str | None = None
    """The batch of a replay that it was last part of."""
    outcome: str | None = None
    """How its last replay ended."""

    @property
    def may_be_there(self) -> bool:
        """Whether the destination may have it already."""
        return self.maybe_delivered or self.state == INTERRUPTED

    def as_dict(self) -> dict[str, Any]:
        """For people and programs to read."""
        times = {"first_at": self.first_at.isoformat(), "last_at": self.last_at.isoformat()}
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, **times}

    def after(self, told: Mapping[str, Any]) -> Letter:
        """The letter after what a replay said of it."""
        known = {name: told[name] for name in ("state", "replay", "outcome", "attempts", *FIELDS[:3]) if told.get(name) is not None}
        if told.get("last_at") is not None:
            known["last_at"] = moment(told["last_at"])
        return replace(self, **known)


def letter_of(record: object) -> Letter | None:
    """A letter from a decoded record; `None` if it is not one."""
    if not isinstance(record, dict):
        return None
    found = cast("dict[str, Any]", record)
    if not isinstance(found.get("key"), str) or "item" not in found:
        return None
    try:
        return Letter(
            key=found["key"],
            item=found["item"],
            attempts=int(found["attempts"]),
            first_at=moment(found["first_at"]),
            last_at=moment(found["last_at"]),
            maybe_delivered=bool(found.get("maybe_delivered")),
            **{name: found[name] for name in FIELDS if found.get(name) is not None},
        )
    except (KeyError, TypeError, ValueError):
        return None


def moment(text: str | datetime) -> datetime:
    """A time as it is stored; without a zone it is UTC. Raises `ValueError`."""
    made = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    return made if made.tzinfo is not None else made.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which letters are meant: those that every condition holds for."""

    states: frozenset[str] = frozenset(STATES)
    keys: tuple[str, ...] = ()
    """Beginnings of keys."""
    batcher: str | None = None
    tenant: str | None = None
    error_type: str | None = None
    error_class: str | None = None
    message: str | None = None
    """A part of the message."""
    since: datetime | None = None
    until: datetime | None = None

    def has(self, letter: Letter) -> bool:
        """Whether the letter is meant. Times are those of its last try; `until` is not included."""
        wanted = (
            (self.batcher, letter.batcher),
            (self.tenant, None if letter.tenant is None else str(letter.tenant)),
            (self.error_type, letter.error_type),
            (self.error_class, letter.error_class),
        )
        return (
            letter.state in self.states
            and (not self.keys or letter.key.startswith(self.keys))
            and all(value is None or value == found for value, found in wanted)
            and (self.message is None or self.message in letter.message)
            and (self.since is None or letter.last_at >= self.since)
            and (self.until is None or letter.last_at < self.until)
        )
