"""One write of one batch of jobs.

1. All jobs are enqueued by one call of the SQL function `enqueue`, or by several calls in one
   transaction if the JSON is long. The server leaves out jobs that were enqueued before.
2. If an error may be caused by single jobs, for example in a user's trigger, the jobs at fault are
   found by bisection, with savepoints in one transaction.
3. A full queue throttles the whole write. A batch with more jobs than the queue can hold is
   enqueued in parts, each in its own transaction, up to the first part for which there is no room.
4. Any other error applies to the whole write. Without a response to the only statement, or to the
   COMMIT, the outcome is unknown; a retry resolves it by the ids.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ...._core.classify import caused
from ...._core.errors import ErrorClass, ThrottledError
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
    message_of,
    sqlstate,
)
from ...client.refusals import privilege, refusal, repair_of
from ...streams.messages.append import NO_RIGHT, NOT_INSTALLED
from ..jobs.enqueue import (
    FULL,
    NO_QUEUE,
    NO_SLOT,
    create_command,
    enqueue_statement,
    max_depth_query,
)
from ..jobs.job import NEW, Enqueued

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy

    from ...._core.batch import Batch
    from ...client.statements import Statements
    from .jobs import GivenJobs

Answer = tuple["Sequence[int]", "list[Record]"]
"""The places of the jobs of one call, and the returned rows."""

PART = 32 << 20
"""Maximum size of the JSON in one call, in characters."""
FULL_SECONDS = 1.0
"""Minimum throttle delay of a full queue, in seconds: consumers free capacity continuously."""
OF_THE_QUEUE = frozenset({NO_QUEUE, FULL, NO_SLOT})
"""SQLSTATEs that are not caused by a single job."""


class QueueWrite:
    """Enqueues the jobs of one batch."""

    def __init__(
        self, schema: str, queue: str, place: str, batch: Batch[Any], given: GivenJobs
    ) -> None:
        self._schema = schema
        self._queue = queue
        self._place = place
        self._batch = batch
        self._given = given
        self._errors = given.errors
        self._left: dict[int, BaseException] = {}
        """Errors of jobs that found no room, after jobs of the same write that did."""
        self._outcomes: dict[int, Outcome] = {}
        self._details: dict[int, object] = {}
        self._failed: set[object] = set()
        """Keys with a refused job."""
        stopped = stopped_behind(batch.keys, self._errors)
        if stopped:
            self._errors.update(stopped)
            given.keep([at for at, index in enumerate(given.indices) if index not in stopped])

    @property
    def is_empty(self) -> bool:
        """Whether there are no jobs."""
        return not self._given.indices

    @property
    def has_new(self) -> bool:
        """Whether a job was enqueued that did not exist before."""
        return len(self._details) > len(self._outcomes)

    async def run(self, con: PoolConnectionProxy[Any], statements: Statements) -> None:
        """Enqueue the jobs. Raises errors of the batch as a whole.

        Cancellation leaves the connection busy or in a transaction: it must be reset.
        """
        everything = range(len(self._given.indices))
        try:
            await self._run(con, statements, everything)
        except ThrottledError as error:
            if sqlstate(error.__cause__ or error) != FULL:
                raise
            async with statements.block(con):
                depth = await con.fetchval(max_depth_query(self._schema), self._queue)
            if depth is None or len(everything) <= depth:
                raise
            await self._run_in_parts(con, statements, max(1, depth // 2))

    async def _run_in_parts(
        self, con: PoolConnectionProxy[Any], statements: Statements, size: int
    ) -> None:
        places = range(len(self._given.indices))
        for start in places[::size]:
            try:
                await self._run(con, statements, places[start : start + size])
            except Exception as error:
                indices = self._given.indices
                self._left.update(dict.fromkeys(indices[start : start + size], error))
                why = "not sent, because the jobs before it failed"
                behind = ThrottledError(why, retry_after=FULL_SECONDS)
                self._left.update(dict.fromkeys(indices[start + size :], behind))
                return

    async def _run(
        self, con: PoolConnectionProxy[Any], statements: Statements, places: Sequence[int]
    ) -> None:
        try:
            async with self._transaction(con, statements, places):
                answers = await self._enqueue(con, places)
        except Exception as error:
            if not self._may_be_items(error):
                raise self._told(error)  # noqa: B904  # the cause is set
        else:
            self._note(answers)
            return
        failed = set(self._failed)
        try:
            async with transaction(con, isolation="read_committed"):
                await self._search(con, places)
        except Exception as error:
            self._failed = failed
            self._forget(places)
            raise self._told(error)  # noqa: B904  # the cause is set

    def _forget(self, places: Sequence[int]) -> None:
        """Drop the results of a transaction that was rolled back."""
        for place in places:
            for answers in (self._errors, self._outcomes, self._details):
                answers.pop(self._given.indices[place], None)

    @asynccontextmanager
    async def _transaction(
        self, con: PoolConnectionProxy[Any], statements: Statements, places: Sequence[int]
    ) -> AsyncGenerator[None]:
        """A transaction, unless a single statement suffices."""
        is_one = len([*self._parts(places)]) == 1
        async with (
            transaction(con, isolation="read_committed")
            if statements.are_prepared and not is_one
            else statements.block(con)
        ):
            yield

    def _parts(self, places: Sequence[int]) -> Iterator[Sequence[int]]:
        """The places, divided so that the JSON of one call does not exceed the limit."""
        columns = self._given.columns
        start = size = 0
        for at, place in enumerate(places):
            longer = len(columns.payloads[place]) + len(columns.headers[place] or "")
            if size and size + longer > PART:
                yield places[start:at]
                start, size = at, 0
            size += longer
        yield places[start:]

    async def _enqueue(self, con: PoolConnectionProxy[Any], places: Sequence[int]) -> list[Answer]:
        statement = enqueue_statement(self._schema)
        return [
            (part, await con.fetch(statement, self._queue, *self._given.columns.kept(part).values))
            for part in self._parts(places)
        ]

    async def _search(self, con: PoolConnectionProxy[Any], places: Sequence[int]) -> None:
        """Enqueue the jobs that the server accepts, and refuse the others."""
        if self._failed:
            places = [each for each in places if self._key(each) not in self._failed]
        if not places:
            return
        try:
            async with transaction(con):
                answers = await self._enqueue(con, places)
        except Exception as error:
            if not self._may_be_items(error):
                raise
            if len(places) == 1:
                self._refuse(places[0], error)
                return
        else:
            self._note(answers)
            return
        half = len(places) // 2
        await self._search(con, places[:half])
        await self._search(con, places[half:])

    def _key(self, place: int) -> object:
        keys = self._batch.keys
        return None if keys is None else accepted(keys[self._given.indices[place]])

    def _may_be_items(self, error: Exception) -> bool:
        state = sqlstate(error)
        return (
            state is not None
            and state not in NOT_INSTALLED | OF_THE_QUEUE
            and not is_lost(error)
            and is_about_items(error)
        )

    def _refuse(self, place: int, error: Exception) -> None:
        if is_refusal(error):
            raise error
        self._errors[self._given.indices[place]] = for_item(error)
        if self._batch.keys is not None:
            self._failed.add(self._key(place))

    def _note(self, answers: Sequence[Answer]) -> None:
        ids = self._given.columns.ids
        for places, rows in answers:
            for place, (state, found) in zip(places, rows, strict=True):
                index = self._given.indices[place]
                self._details[index] = Enqueued(found, UUID(ids[place]), state)
                if state != NEW:
                    self._outcomes[index] = Outcome.DUPLICATE

    def _told(self, error: Exception) -> Exception:
        """The error for the whole write."""
        state = sqlstate(error)
        what = f"nothing enqueued in {self._queue!r}"
        schema = f"--schema {self._schema}"
        if state == FULL:
            full = ThrottledError(f"{what}: {message_of(error)}", retry_after=FULL_SECONDS)
            return caused(full, error)
        if state == NO_QUEUE:
            command = create_command(self._schema, self._queue)
            return refusal(error, what, f"{command}, for {self._place}")
        if state == NO_SLOT:
            return refusal(error, what, "the slot function is read again by the next write")
        if state in NOT_INSTALLED:
            return refusal(error, what, f"sluicegate pg install, with {schema}, at {self._place}")
        if classify_postgres(error) is ErrorClass.REFUSED or is_refusal(error):
            repair = repair_of(error, self._place)
            if state == NO_RIGHT:
                repair = (
                    f"sluicegate pg install, with {schema} --enqueue ROLE, at {self._place} "
                    f"({privilege(error)})"
                )
            return refusal(error, what, repair)
        return for_write(error, sealed=True)

    def answer(self) -> WriteResult:
        """The result for the batch."""
        self._errors.update(stopped_behind(self._batch.keys, self._errors, self._details))
        errors = {**self._left, **self._errors}
        return WriteResult(len(self._batch), errors, self._outcomes, self._details)
