"""One write: the parts of a batch are sent to Redis, and each item gets a result.

1. A part is sent at once, and its replies are read in order. An item is stored once its command has
   a reply. If the connection is lost, the items without a reply are unknown, and those of later
   parts unsent.
2. An id that is too low is refused. The entry may come from an earlier attempt, so it is looked up,
   and is a `duplicate` only if it exists with the same fields; otherwise `KeyConflicts` judges it.
   If it no longer exists (trimmed, deleted), the outcome cannot be determined.
3. In a batch with keys, items after a failed item of their key are left out; see `parts`.
4. A cancelled write settles the items that have a reply, and closes its connection.
"""

from __future__ import annotations

import logging
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
from .._core.logs import log_safely
from .._core.order.left_out import stopped_behind
from .._core.outcome import Outcome
from .._core.sink import WriteResult
from .._core.values.rows import KeyConflicts
from .parts import parts_of
from .refusals import DROPS, code_of, ends_connection, is_low_id, not_executed, refusal
from .stream import same_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core.batch import Batch
    from .commands import Command
    from .elements import ListForm
    from .items import RedisItems
    from .line import RedisConnections, RedisLine
    from .stream import StreamForm

logger = logging.getLogger("sluicegate.redis")

_GROWS = "%s: the list %r cannot be trimmed (%s) and keeps growing; the written items are stored"


class RedisWrite:
    """Sends the items of one batch and returns a result for each."""

    def __init__(
        self,
        connections: RedisConnections,
        batch: Batch[Any],
        made: RedisItems,
        form: StreamForm | ListForm,
    ) -> None:
        self._connections = connections
        self._batch = batch
        self._made = made
        self._form = form
        self._errors = made.errors
        self._stored: dict[int, str] = {}
        """The ids of stored entries, by index; empty for elements."""
        self._known: set[int] = set()
        """Indices of items that an earlier attempt has stored."""
        self._doubtful: list[int] = []
        """Places whose id is too low, possibly because they are already stored."""
        self._conflicts = KeyConflicts(connections.place, ("id",))
        self._told: dict[tuple[bytes, str], SinkError] = {}
        self._ended_by: SinkError | None = None
        """The error for which the server closed the connection."""

    async def run(self) -> WriteResult | None:
        """Send all parts and read the replies. Raises the error common to all items."""
        self._stop_behind()
        form, made = self._form, self._made
        parts = parts_of(made, self._batch.keys, joins=form.joins, ordered=form.ordered)
        try:
            if parts:
                await self._send(parts)
        except SinkError as error:
            self._fail_others(error)
        except BaseException:
            self._settle()
            raise
        return self._result()

    async def _send(self, parts: Sequence[Sequence[int]]) -> None:
        now = self._batch.delivery.clock.wall_time()
        async with self._connections.lend() as line:
            for part in parts:
                places = [place for place in part if not self._has_error(place)]
                commands = self._form.commands(self._made, places, now)
                try:
                    await self._exchange(line, commands)
                    await self._look_up(line)
                except UnknownOutcomeError as error:
                    self._lost(places, error)
                    return
                if self._ended_by is not None:  # after its last reply
                    self._ended_by = None
                    await line.renew()
                self._stop_behind()

    async def _exchange(self, line: RedisLine, commands: Sequence[Command]) -> None:
        def take(number: int, answer: object) -> None:
            self._take(line, commands[number], answer)

        if commands:
            await line.exchange((each.data for each in commands), len(commands), take)

    # -- replies ------------------------------------------------------------------------------------

    def _take(self, line: RedisLine, command: Command, answer: object) -> None:
        if isinstance(answer, BaseException):
            self._refused(line, command, answer)
            return
        if not command.places:  # the list is trimmed
            return
        told, indices = self._form.detail(answer, command.name), self._made.indices
        if isinstance(told, str):
            for place in command.places:
                self._stored[indices[place]] = told
            return
        if told is None:
            told = ResultMismatch(f"{self._connections.place} has sent an unexpected reply")
        self._fail(command, self._told.setdefault((command.name, str(told)), told))

    def _refused(self, line: RedisLine, command: Command, answer: BaseException) -> None:
        if code_of(answer) in DROPS:
            line.spoil()
        if not command.places:
            self._not_trimmed(command.name, answer)
            return
        error = self._refusal(command.name, answer)
        if ends_connection(answer):
            self._ended_by = error
        if is_low_id(answer):
            (place,) = command.places
            self._has_low_id(place, error)
        else:
            self._fail(command, error)

    def _fail(self, command: Command, error: SinkError) -> None:
        for place in command.places:
            self._errors[self._made.indices[place]] = error

    def _refusal(self, name: bytes, answer: BaseException) -> SinkError:
        """One shared error for all items that are refused for the same reason."""
        known = self._told.get((name, str(answer)))
        if known is None:
            where = f"the key {_shown(name)!r}"
            known = self._told[name, str(answer)] = refusal(answer, where)
        return known

    def _not_trimmed(self, name: bytes, answer: BaseException) -> None:
        connections = self._connections
        if code_of(answer) in {"WRONGTYPE", "READONLY", "OOM"} or name in connections.untrimmed:
            return  # nothing was pushed, or it is already logged
        connections.untrimmed.add(name)
        told = refusal(answer, "LTRIM")
        log_safely(logger, logging.WARNING, _GROWS, connections.place, _shown(name), told)

    def _has_low_id(self, place: int, error: SinkError) -> None:
        """Fail an entry whose id is too low, or look it up if it may already be stored."""
        index = self._made.indices[place]
        if self._form.ignores_known or index in self._batch.maybe_applied:
            self._doubtful.append(place)
        else:
            self._errors[index] = error

    async def _look_up(self, line: RedisLine) -> None:
        """Determine whether the entries with these ids come from an earlier attempt."""
        doubtful, self._doubtful = self._doubtful, []
        if doubtful:
            self._note_stored()
        commands = self._form.lookups(self._made, doubtful)
        if not commands:
            return
        answers: list[object] = []
        try:
            await line.exchange(
                (each.data for each in commands),
                len(commands),
                lambda _, answer: answers.append(answer),
            )
        finally:
            for place, answer in zip(doubtful, answers, strict=False):  # only those with a reply
                self._found(place, answer)

    def _note_stored(self) -> None:
        """Record the ids of the entries that this attempt has stored."""
        made = self._made
        for index, key in zip(made.indices, zip(made.names, made.ids, strict=True), strict=True):
            if index in self._stored and index not in self._known:
                self._conflicts.note_stored(key)

    def _found(self, place: int, answer: object) -> None:
        index = self._made.indices[place]
        shown = self._made.ids[place].decode()
        if isinstance(answer, BaseException):
            error = refusal(answer, f"XRANGE of the entry {shown}")
            if isinstance(error, PermanentError):  # such as for an id without a sequence number
                error = caused(UnverifiableError(f"{error}"), error)
            self._errors[index] = error
            return
        is_same = same_entry(answer, self._made.values[place])
        if is_same is not None and index in self._batch.maybe_applied:
            key = self._made.names[place], self._made.ids[place]
            conflict = self._conflicts.verdict(key, is_same=is_same)
            if conflict is not None and not (is_same and self._form.ignores_known):
                self._errors[index] = conflict
                return
            self._stored[index] = shown
            self._known.add(index)
        elif is_same:
            self._stored[index] = shown
        elif is_same is None and index in self._batch.maybe_applied:
            told = f"the stream has a higher id than {shown}, and the entry does not exist"
            self._errors[index] = UnverifiableError(
                f"{told}; an earlier attempt may have stored it"
            )
        else:
            told = f"the stream has a higher id than {shown}"
            why = "that entry is different" if is_same is False else "that entry does not exist"
            self._errors[index] = PermanentError(f"{told}, and {why}")

    # -- ends ---------------------------------------------------------------------------------------

    def _has_error(self, place: int) -> bool:
        return self._made.indices[place] in self._errors

    def _stop_behind(self) -> None:
        """Fail the items after failed items of their keys."""
        self._errors |= stopped_behind(self._batch.keys, self._errors, self._stored)

    def _lost(self, places: Sequence[int], error: UnknownOutcomeError) -> None:
        """End the write: items without a reply are unknown, and later ones were not sent."""
        ended = self._ended_by
        if isinstance(ended, RefusedError):  # a missing login, the same for all items
            self._fail_others(ended)
            return
        rest = error if ended is None else not_executed(ended)
        for place in places:
            index = self._made.indices[place]
            if index not in self._stored and index not in self._errors:
                self._errors[index] = rest
        self._fail_others(caused(UnavailableError(f"not sent, because {rest}"), rest))

    def _fail_others(self, error: SinkError) -> None:
        for index in range(len(self._batch)):
            if index not in self._stored and index not in self._errors:
                self._errors[index] = error

    def _settle(self) -> None:
        """Settle stored items before a cancellation is raised."""
        for outcome, is_known in ((Outcome.DELIVERED, False), (Outcome.DUPLICATE, True)):
            stored = {i: told for i, told in self._stored.items() if (i in self._known) is is_known}
            self._batch.settle(stored, outcome, {i: told for i, told in stored.items() if told})

    def _result(self) -> WriteResult | None:
        errors, size = self._errors, len(self._batch)
        assert len(errors) + len(self._stored) == size, "each item has one result"
        if size and len(errors) == size and len({*map(id, errors.values())}) == 1:
            raise next(iter(errors.values()))
        details = {index: told for index, told in self._stored.items() if told}
        if not errors and not details and not self._known:
            return None
        known = dict.fromkeys(self._known, Outcome.DUPLICATE)
        return WriteResult(
            size, {index: of_item(error) for index, error in errors.items()}, known, details
        )


def _shown(name: bytes) -> str:
    return name.decode(errors="backslashreplace")
