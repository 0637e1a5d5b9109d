"""One write: the parts of a batch are sent to Redis, and each item gets a result.

1. A part has at most about `PART_BYTES`; an item with a larger value is sent alone. Its commands are
   sent at once, and its replies are read in order. An item is stored once its command has a reply. If
   the connection is lost, the items without a reply are unknown, and those of later parts unsent.
2. In a batch with keys, no item may be stored after a failed item of its key, but Redis continues
   after a failed command. So commands of one key are in different parts, and the next one is sent
   once the previous one is stored.
3. Entries with their own ids stay in order, since a stream accepts only increasing ids. An id that is
   too low is refused. The entry may come from an earlier attempt, so it is looked up, and is a
   `duplicate` only if it exists with the same fields; otherwise `KeyConflicts` judges it. If it no
   longer exists (trimmed, deleted), the outcome cannot be determined.
4. A cancelled write settles the items that have a reply, and closes its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.classify import caused, of_item
from .._core.errors import (
    PermanentError,
    RefusedError,
    ResultMismatch,
    SinkError,
    UnavailableError,
    UnknownOutcomeError,
    UnverifiableError,
)
from .._core.order.keys import accepted
from .._core.order.left_out import stopped_behind
from .._core.outcome import Outcome
from .._core.sink import WriteResult
from .._core.values.rows import KeyConflicts
from .commands import is_same_entry, lookup
from .refusals import ends_connection, is_low_id, not_executed, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core.batch import Batch
    from .commands import Prepared, RedisItem, StreamForm
    from .connections import RedisConnections

PART_BYTES = 1 << 20


class RedisWrite:
    """Sends the items of one batch and returns a result for each."""

    def __init__(
        self,
        connections: RedisConnections,
        batch: Batch[Any],
        prepared: Prepared,
        form: StreamForm,
    ) -> None:
        self._connections = connections
        self._batch = batch
        self._items, self._errors = prepared
        self._form = form
        self._stored: dict[int, str] = {}
        """The ids of stored entries, by index."""
        self._known: set[int] = set()
        """Indices of items that an earlier attempt has stored."""
        self._doubtful: list[RedisItem] = []
        """Items whose id is too low, possibly because they are already stored."""
        self._conflicts = KeyConflicts(connections.place, ("id",))
        self._refusals: dict[tuple[bytes, str], SinkError] = {}
        self._ended_by: SinkError | None = None
        """The error for which the server closed the connection."""

    async def run(self) -> WriteResult:
        """Send all parts and read the replies. Raises the error common to all items."""
        self._stop_behind()
        parts = parts_of(self._items, self._batch.keys, ordered=self._form.ordered)
        now = self._batch.delivery.clock.wall_time()
        try:
            for part in parts:
                if not await self._send([each for each in part if not self._has_error(each)], now):
                    break
        except SinkError as error:
            self._fail_others(error)
        except BaseException:
            self._settle()
            raise
        return self._result()

    async def _send(self, items: Sequence[RedisItem], now: float) -> bool:
        """Send the items of a part; return whether the next part may be sent."""
        try:
            if items:
                await self._connections.exchange(
                    self._form.commands(items, now),
                    lambda number, answer: self._take(items[number], answer),
                )
            await self._look_up()
        except UnknownOutcomeError as error:
            self._lose(items, error)
            return False
        self._ended_by = None  # after its last reply
        self._stop_behind()
        return True

    # -- replies ------------------------------------------------------------------------------------

    def _take(self, item: RedisItem, answer: object) -> None:
        if isinstance(answer, BaseException):
            self._refuse(item, answer)
            return
        detail = self._form.detail(answer, item.name)
        if isinstance(detail, str):
            self._stored[item.index] = detail
            return
        if detail is None:
            detail = ResultMismatch(f"{self._connections.place} has sent an unexpected reply")
        self._errors[item.index] = self._refusals.setdefault((item.name, str(detail)), detail)

    def _refuse(self, item: RedisItem, answer: BaseException) -> None:
        error = self._refusal(item.name, answer)
        if ends_connection(answer):
            self._ended_by = error
        if is_low_id(answer) and (
            self._form.ignores_known or item.index in self._batch.maybe_applied
        ):
            self._doubtful.append(item)
        else:
            self._errors[item.index] = error

    def _refusal(self, name: bytes, answer: BaseException) -> SinkError:
        """One shared error for all items that are refused for the same reason."""
        known = self._refusals.get((name, str(answer)))
        if known is None:
            where = f"the key {_text(name)!r}"
            known = self._refusals[name, str(answer)] = refusal(answer, where)
        return known

    # -- entries of an earlier attempt --------------------------------------------------------------

    async def _look_up(self) -> None:
        """Determine whether the entries with these ids come from an earlier attempt."""
        doubtful, self._doubtful = self._doubtful, []
        if not doubtful:
            return
        for item in self._items:
            if item.index in self._stored and item.index not in self._known:
                self._conflicts.note_stored((item.name, item.id))
        answers: list[object] = []
        try:
            await self._connections.exchange(
                [lookup(item) for item in doubtful], lambda _, answer: answers.append(answer)
            )
        finally:
            for item, answer in zip(doubtful, answers, strict=False):  # only those with a reply
                self._judge(item, answer)

    def _judge(self, item: RedisItem, answer: object) -> None:
        index, shown = item.index, item.id.decode()
        if isinstance(answer, BaseException):
            error = refusal(answer, f"XRANGE of the entry {shown}")
            if isinstance(error, PermanentError):  # such as for an id without a sequence number
                error = caused(UnverifiableError(f"{error}"), error)
            self._errors[index] = error
            return
        is_same, is_maybe = is_same_entry(answer, item.values), index in self._batch.maybe_applied
        if is_same is not None and is_maybe:
            conflict = self._conflicts.verdict((item.name, item.id), is_same=is_same)
            if conflict is not None and not (is_same and self._form.ignores_known):
                self._errors[index] = conflict
                return
            self._stored[index] = shown
            self._known.add(index)
        elif is_same:
            self._stored[index] = shown
        elif is_same is None and is_maybe:
            told = f"the stream has a higher id than {shown}, and the entry does not exist"
            self._errors[index] = UnverifiableError(
                f"{told}; an earlier attempt may have stored it"
            )
        else:
            why = "that entry is different" if is_same is False else "that entry does not exist"
            told = f"the stream has a higher id than {shown}, and {why}"
            self._errors[index] = PermanentError(told)

    # -- ends ---------------------------------------------------------------------------------------

    def _has_error(self, item: RedisItem) -> bool:
        return item.index in self._errors

    def _stop_behind(self) -> None:
        """Fail the items after failed items of their keys."""
        self._errors |= stopped_behind(self._batch.keys, self._errors, self._stored)

    def _lose(self, items: Sequence[RedisItem], error: UnknownOutcomeError) -> None:
        """End the write: items without a reply are unknown, and later ones were not sent."""
        ended = self._ended_by
        if isinstance(ended, RefusedError):  # a missing login, the same for all items
            self._fail_others(ended)
            return
        rest = error if ended is None else not_executed(ended)
        for item in items:
            if item.index not in self._stored and not self._has_error(item):
                self._errors[item.index] = rest
        self._fail_others(caused(UnavailableError(f"not sent, because {rest}"), rest))

    def _fail_others(self, error: SinkError) -> None:
        for index in range(len(self._batch)):
            if index not in self._stored and index not in self._errors:
                self._errors[index] = error

    def _settle(self) -> None:
        """Settle stored items before a cancellation is raised."""
        for outcome, is_known in ((Outcome.DELIVERED, False), (Outcome.DUPLICATE, True)):
            stored = {i: told for i, told in self._stored.items() if (i in self._known) is is_known}
            self._batch.settle(stored, outcome, stored)

    def _result(self) -> WriteResult:
        errors, size = self._errors, len(self._batch)
        assert len(errors) + len(self._stored) == size, "each item has one result"
        if size and len(errors) == size and len({*map(id, errors.values())}) == 1:
            raise next(iter(errors.values()))
        known = dict.fromkeys(self._known, Outcome.DUPLICATE)
        return WriteResult(
            size, {index: of_item(error) for index, error in errors.items()}, known, self._stored
        )


def parts_of(
    items: Sequence[RedisItem], keys: Sequence[object] | None, *, ordered: bool
) -> list[list[RedisItem]]:
    """Divide items into parts, which are sent one after another. Pure.

    Args:
        items: the items.
        keys: those of all items of the batch, by index, if order matters.
        ordered: whether the order within a name must be kept.
    """
    waves = [items] if keys is None else _waves(items, keys, ordered=ordered)
    return [part for wave in waves for part in _cut(wave)]


def _waves(
    items: Sequence[RedisItem], keys: Sequence[object], *, ordered: bool
) -> list[list[RedisItem]]:
    last: dict[object, int] = {}
    highest: dict[bytes, int] = {}
    found: list[list[RedisItem]] = []
    for item in items:
        key, name = accepted(keys[item.index]), item.name
        wave = last.get(key, -1) + 1
        if ordered:
            highest[name] = wave = max(wave, highest.get(name, 0))
        last[key] = wave
        while len(found) <= wave:
            found.append([])
        found[wave].append(item)
    return found


def _cut(items: Sequence[RedisItem]) -> list[list[RedisItem]]:
    parts: list[list[RedisItem]] = []
    room = 0
    for item in items:
        size = item.size
        if not parts or size > room:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(item)
        room -= size
    return parts


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")
