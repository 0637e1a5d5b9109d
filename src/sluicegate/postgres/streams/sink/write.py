"""One write of one batch of messages, in one transaction.

1. All messages are appended by one `INSERT` (`append_new`), which commits by itself.
2. Messages are appended one by one inside the server (`append_each`) if an earlier attempt may have
   appended them, an item expects a version, an id already exists, or another transaction appends to
   one of the streams at the same time. So a refused item fails alone; with keys, the later items of
   its key fail with it.
3. If an error may be caused by single messages, for example in a user's trigger, the messages at
   fault are found by bisection, with savepoints in one transaction.
4. Any other error applies to the whole write. Without a response to the only statement, or to the
   COMMIT, the outcome is unknown; a retry resolves it by the ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._core.errors import ErrorClass, MessageIdConflict, VersionConflict
from ...._core.order.keys import accepted
from ...._core.order.left_out import stopped_behind
from ...._core.outcome import Outcome
from ...._core.sink import WriteResult
from ...client.answers import transaction
from ...client.errors import (
    classify_postgres,
    for_item,
    for_write,
    is_about_items,
    is_lost,
    is_refusal,
    sqlstate,
)
from ...client.refusals import privilege, refusal, repair_of
from ..messages.append import NO_RIGHT, NOT_INSTALLED, UNIQUE
from ..messages.batch import (
    BEHIND,
    KNOWN,
    OTHER,
    VERSION,
    MessageAnswer,
    each_statement,
    new_statement,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy

    from ...._core.batch import Batch
    from ...client.statements import Statements
    from .messages import GivenMessages


class StreamWrite:
    """Appends the messages of one batch."""

    def __init__(self, schema: str, place: str, batch: Batch[Any], given: GivenMessages) -> None:
        self._schema = schema
        self._place = place
        self._batch = batch
        self._given = given
        self._errors = given.errors
        self._outcomes: dict[int, Outcome] = {}
        self._details: dict[int, object] = {}
        self._failed: set[int] = set()
        """Groups with a refused message."""
        self._groups = _groups(batch.keys)
        self._drop_stopped()

    @property
    def is_empty(self) -> bool:
        """Whether there are no messages."""
        return not self._given.indices

    def _drop_stopped(self) -> None:
        """Leave out items after an item of the same key that cannot become a message."""
        stopped = stopped_behind(self._batch.keys, self._errors)
        if stopped:
            self._errors.update(stopped)
            kept = [at for at, index in enumerate(self._given.indices) if index not in stopped]
            self._given.keep(kept)

    async def run(self, con: PoolConnectionProxy[Any], statements: Statements) -> None:
        """Append the messages. Raises errors of the batch as a whole.

        Cancellation leaves the connection busy or in a transaction: it must be reset.
        """
        try:
            try:
                async with statements.block(con):
                    await self._append(con)
            except Exception as error:
                if not self._is_one_by_one and sqlstate(error) == UNIQUE:
                    async with statements.block(con):
                        await self._append_each(con, range(len(self._given.indices)))
                else:
                    raise
        except Exception as error:
            if not self._may_be_items(error):
                raise self._told(error)  # noqa: B904  # the cause is set
        else:
            return
        try:
            async with transaction(con, isolation="read_committed"):
                await self._search(con, range(len(self._given.indices)))
        except Exception as error:
            raise self._told(error)  # noqa: B904  # the cause is set

    @property
    def _is_one_by_one(self) -> bool:
        return bool(self._batch.maybe_applied) or any(
            version is not None for version in self._given.columns.expected
        )

    async def _append(self, con: PoolConnectionProxy[Any]) -> None:
        if self._is_one_by_one:
            await self._append_each(con, range(len(self._given.indices)))
            return
        columns = self._given.columns
        rows = await con.fetch(new_statement(self._schema), *columns.texts)
        place_of = {id_: place for place, id_ in enumerate(columns.ids)}
        self._note([place_of[row[0]] for row in rows], rows)

    async def _append_each(self, con: PoolConnectionProxy[Any], places: Sequence[int]) -> None:
        columns = self._given.columns.kept(places)
        groups = None
        if (of_batch := self._groups) is not None:
            groups = [of_batch[self._given.indices[place]] for place in places]
        statement = each_statement(self._schema)
        in_order = groups is not None and _are_mixed(groups, columns.streams)
        rows = await con.fetch(statement, *columns.texts, columns.expected, groups, in_order)
        if not in_order:
            places = sorted(places, key=lambda place: self._given.columns.streams[place].encode())
        self._note(places, rows)

    async def _search(self, con: PoolConnectionProxy[Any], places: Sequence[int]) -> None:
        """Append the messages that the server accepts, and refuse the others."""
        if (of_batch := self._groups) is not None:
            indices = self._given.indices
            places = [each for each in places if of_batch[indices[each]] not in self._failed]
        if not places:
            return
        try:
            async with transaction(con):
                await self._append_each(con, places)
        except Exception as error:
            if not self._may_be_items(error):
                raise
            if len(places) == 1:
                self._refuse(places[0], error)
                return
        else:
            return
        half = len(places) // 2
        await self._search(con, places[:half])
        await self._search(con, places[half:])

    def _may_be_items(self, error: Exception) -> bool:
        return (
            sqlstate(error) is not None
            and sqlstate(error) not in NOT_INSTALLED
            and not is_lost(error)
            and is_about_items(error)
        )

    def _refuse(self, place: int, error: Exception) -> None:
        if is_refusal(error):
            raise error
        self._fail(self._given.indices[place], for_item(error))

    def _fail(self, index: int, error: BaseException) -> None:
        self._errors[index] = error
        if self._groups is not None:
            self._failed.add(self._groups[index])

    def _note(self, places: Sequence[int], rows: Sequence[Record]) -> None:
        indices, columns = self._given.indices, self._given.columns
        maybe = self._batch.maybe_applied
        for place, row in zip(places, rows, strict=True):
            index, answer = indices[place], MessageAnswer.of(row)
            if answer.appended is not None:
                self._details[index] = answer.appended
                if answer.state == KNOWN and index in maybe:
                    self._outcomes[index] = Outcome.DUPLICATE
            elif answer.state == VERSION:
                conflict = VersionConflict(
                    columns.streams[place],
                    expected=columns.expected[place] or 0,
                    actual=answer.version or 0,
                )
                self._fail(index, conflict)
            elif answer.state == OTHER:
                why = f"the id {columns.ids[place]} belongs to another message in the log"
                self._fail(index, MessageIdConflict(columns.streams[place], why))
            else:
                assert answer.state == BEHIND, answer.state  # the only remaining state

    def _told(self, error: Exception) -> Exception:
        """The error for the whole write."""
        if sqlstate(error) in NOT_INSTALLED:
            repair = f"sluicegate pg install, with --schema {self._schema}, at {self._place}"
            return refusal(error, f"nothing appended to {self._schema!r}", repair)
        if classify_postgres(error) is ErrorClass.REFUSED or is_refusal(error):
            repair = repair_of(error, self._place)
            if sqlstate(error) == NO_RIGHT:
                repair = (
                    f"sluicegate pg install, with --schema {self._schema} --append ROLE, at "
                    f"{self._place} ({privilege(error)})"
                )
            return refusal(error, f"nothing appended to {self._schema!r}", repair)
        return for_write(error, sealed=True)

    def answer(self) -> WriteResult:
        """The result for the batch."""
        done = self._details
        self._errors.update(stopped_behind(self._batch.keys, self._errors, done))
        return WriteResult(len(self._batch), self._errors, self._outcomes, self._details)


def _groups(keys: Sequence[object] | None) -> list[int] | None:
    """A number for each item, the same for equal keys."""
    if keys is None:
        return None
    numbers: dict[object, int] = {}
    return [numbers.setdefault(accepted(key), len(numbers)) for key in keys]


def _are_mixed(groups: Sequence[int], streams: Sequence[str]) -> bool:
    """Whether a group has messages of several streams."""
    return len({*zip(groups, streams, strict=True)}) > len({*groups})
