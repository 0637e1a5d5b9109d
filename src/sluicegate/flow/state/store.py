"""The state of one partition in memory, whose changes are stored with its position.

1. A value is encoded when it is put, and decoded each time it is read. A reader therefore gets the
   same value before and after a restart, later changes to a value object have no effect here, and a
   value that cannot be stored fails the turn that puts it.
2. Changes are made within turns. A turn that does not count is undone, key by key.
3. Only the task that runs the turn, and the tasks and threads that it starts, may use the store in
   that turn: reads and changes of any other code would be part of the wrong event.
"""

from __future__ import annotations

import json
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import ConfigError
from ..._core.text import text_of
from ...consumer.jobs.state import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..._core.source import TopicPartition
    from .changes import ChangeLog, ForwardedRecord, Stored


LONGEST_KEY = 1024
"""Maximum number of bytes in a key; a PostgreSQL index allows about 2,700, with group and
topic.
"""
_ABSENT: Any = object()
_current: ContextVar[object] = ContextVar("sluicegate_state_turn", default=None)
"""The turn in which this task, or thread, runs."""


class KeptStore:
    """The state of one partition: a `TurnStore`."""

    def __init__(
        self,
        partition: TopicPartition,
        entries: dict[str, Stored],
        log: ChangeLog,
        codec: StateCodec,
        check: Callable[[str, Stored], None],
    ) -> None:
        self._partition = partition
        self._entries = MemoryStore(entries)
        self._codec = codec
        self._check = check
        """Raises `ConfigError` for a value that cannot be stored under its key."""
        self.log = log
        self._form = bytes if codec.column == "bytea" else str
        self._offset: int | None = None
        self._turn: object = _ABSENT
        """Identity of the current turn; never `None`."""
        self._before: dict[str, Stored | None] = {}
        """The previous values of the keys changed in this turn; `None` for a new key."""
        self._changes: dict[str, Stored | None] = {}
        self._forwarded: list[ForwardedRecord] = []
        self.loss: Exception | None = None
        """The reason why nothing more can be stored."""

    # -- the state ---------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, as a new object.

        Raises `ConfigError` for a key that is not text, and outside a turn.
        """
        self._check_turn()
        self.log.touch(key)
        stored = self._entries.get(key, _ABSENT)
        return default if stored is _ABSENT else self._codec.decode(stored)

    def put(self, key: str, value: Any) -> None:
        """Set the value of a key.

        Raises the codec's error for a value that it cannot encode, and `ConfigError` for a value
        that cannot be stored, for a key that is not a string of at most 1,024 bytes, and outside a
        turn.
        """
        if self._entries.get(key, _ABSENT) is _ABSENT:
            _check_key(key)
        stored = self._codec.encode(value)
        if not isinstance(cast("object", stored), self._form):
            rule = f"must encode values as {self._form.__name__} for column={self._codec.column!r}"
            raise checks.bad("codec", self._codec, f"{rule}; encoded {key!r} as {stored!r:.50}")
        self._check(key, stored)
        self._change(key, stored)
        self._entries.put(key, stored)

    def delete(self, key: str) -> bool:
        """Remove a key; return whether it existed. Raises like `get`."""
        self._check_turn()
        if self._entries.get(key, _ABSENT) is _ABSENT:
            self.log.touch(key)
            return False
        self._change(key, None)
        return self._entries.delete(key)

    def range(
        self, start: str = "", end: str | None = None, *, limit: int | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Iterate over up to `limit` keys from `start` to before `end`, with values, in order.

        Raises `ConfigError` outside a turn.
        """
        self._check_turn()
        self.log.touch_all()
        decode = self._codec.decode
        found = self._entries.range(start, end, limit=limit)
        return ((key, decode(stored)) for key, stored in found)

    def __len__(self) -> int:
        self._check_turn()
        self.log.touch_all()
        return len(self._entries)

    def add_forwarded(self, record: ForwardedRecord) -> None:
        """Add a record to be sent with the changes of this turn.

        Raises `ConfigError` outside a turn.
        """
        self._check_turn()
        self._forwarded.append(record)

    def _change(self, key: str, stored: Stored | None) -> None:
        self._check_turn()
        self.log.touch(key)
        if key not in self._before:
            self._before[key] = self._entries.get(key)
        self._changes[key] = stored

    def _check_turn(self) -> None:
        if _current.get() is not self._turn:
            rule = (
                "can be used only in the turn of an event of the partition: in its handler, a finaliser, a "
                "callback or an interjection, and in tasks and threads (asyncio.to_thread) started there"
            )
            raise ConfigError(f"the state of {self._partition} {rule}")

    # -- turns -------------------------------------------------------------------------------------

    def begin_turn(self, offset: int | None) -> None:
        """Begin the turn of the event with this offset; `None`: of an interjection."""
        self._offset, self._before, self._changes, self._forwarded = offset, {}, {}, []
        self._turn = object()
        _current.set(self._turn)
        self.log.begin()

    def _undo(self) -> None:
        for key, stored in self._before.items():
            if stored is None:
                self._entries.delete(key)
            else:
                self._entries.put(key, stored)

    def end_turn(self, *, counts: bool) -> None:
        """End the turn; its changes are undone unless it `counts`."""
        if counts:
            self.log.end(self._offset, self._changes, self._before, self._forwarded)
        else:
            self._undo()
        self._turn = _ABSENT
        self._before, self._changes, self._forwarded = {}, {}, []

    # -- its position ------------------------------------------------------------------------------

    def bound(self, offset: int) -> int:
        """Return the last position up to `offset` that can be stored with the changes before it."""
        return self.log.bound(offset)

    def owes(self, offset: int) -> bool:
        """Whether changes wait to be stored with this position."""
        return self.log.owes(offset)

    @property
    def is_crowded(self) -> bool:
        """Whether too many changes wait to be stored."""
        return self.log.is_crowded

    def lose(self, error: Exception) -> None:
        """Record that nothing more can be stored."""
        self.loss = error

    def __repr__(self) -> str:
        return f"KeptStore({self._partition}, {len(self._entries)} keys)"


def check_size(key: str, stored: Stored, most: int) -> None:
    """Raise `ConfigError` for a value that is larger than `most` bytes, or not valid UTF-8."""
    if isinstance(stored, str) and not stored.isascii():
        try:
            size = len(stored.encode())
        except UnicodeEncodeError:
            raise ConfigError(f"the value of {key!r} cannot be encoded as UTF-8") from None
    else:
        size = len(stored)
    if size > most:
        raise ConfigError(f"the value of {key!r} has {size:,} bytes; the limit is {most:,}")


def _check_key(key: object) -> None:
    text = checks.text("key", key, empty=True)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise checks.bad("key", key, "must be text that can be encoded as UTF-8") from None
    if size > LONGEST_KEY:
        rule = f"must take at most {LONGEST_KEY} bytes; it takes {size}"
        raise checks.bad("key", key[:40] + "...", rule)  # type: ignore[index]


@runtime_checkable
class StateCodec(Protocol):
    """Encodes values for storage, and decodes them."""

    @property
    def column(self) -> Literal["json", "text", "bytea"]:
        """The stored type: `json` and `text` are strings, `bytea` is bytes. In PostgreSQL it is the
        type of the column.
        """
        ...

    def encode(self, value: Any) -> str | bytes:
        """Encode a value. Raises any exception for a value that cannot be stored."""
        ...

    def decode(self, stored: Any) -> Any:
        """Decode a value, into a new object each time."""
        ...


class JsonState:
    """Encodes values as JSON, in a column of type `json`.

    The text is stored unchanged, so that numbers are read back exactly: `jsonb` would convert 1e16
    to an integer, and refuse a string with NUL. Cast it in queries: `value::jsonb`.
    """

    column: Literal["json", "text", "bytea"] = "json"

    def encode(self, value: Any) -> str:
        """Encode a value as JSON. Raises `TypeError` or `ValueError` if this is impossible."""
        return json.dumps(value, allow_nan=False, separators=(",", ":"))

    def decode(self, stored: str) -> Any:
        """Decode JSON. Tuples have become lists, and the keys of dicts strings."""
        return json.loads(stored)

    def __repr__(self) -> str:
        return "JsonState()"


def check_decodes(codec: StateCodec, entries: Mapping[str, str | bytes]) -> None:
    """Raise `ConfigError` if the codec cannot decode the first entry: it has stored none of them."""
    for key, stored in islice(entries.items(), 1):
        try:
            codec.decode(stored)
        except Exception as error:
            rule = f"cannot decode the stored value of {key!r} ({text_of(error)}); use the codec that stored it"
            raise bad("codec", codec, rule) from error


def checked_codec(codec: StateCodec | None) -> StateCodec:
    """Check a codec argument; default: JSON. Raises `ConfigError`."""
    if codec is None:
        return JsonState()
    if not isinstance(cast("object", codec), StateCodec):
        raise bad("codec", codec, "must have column, encode() and decode(), like JsonState()")
    checks.choice("codec.column", codec.column, ("json", "text", "bytea"))
    return codec
