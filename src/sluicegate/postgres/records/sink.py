"""Sinks that write the items of a batch as records: jobs or messages. One write, one transaction.

1. An item that cannot become a record fails alone, as does a record that the server refuses. With
   keys, the later items of its key fail with it.
2. A record without its own id gets one derived from its item's deduplication token. It is the same
   in every retry of the write, so records that an attempt without a response has written are
   recognized.
3. If an error may be caused by individual records, for example in a user's trigger, the records at
   fault are found by bisection, with savepoints in one transaction.
4. Any other error applies to the whole write. Without a response to the only statement, or to the
   COMMIT, the outcome is unknown; a retry resolves it by the ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from uuid import UUID, uuid5

from ..._core.batch import RowBatch
from ..._core.errors import ConfigError, ErrorClass, MissingExtra, RefusedError
from ..._core.order.keys import accepted
from ..._core.order.left_out import stopped_behind
from ..._core.sink import WriteResult
from ..._core.text import text_of
from ..._core.trace_context import NO_TRACE
from ..._core.values.encoding import getter, item_error
from ..client.answers import transaction
from ..client.connections import Connections
from ..client.errors import (
    classify_postgres,
    for_item,
    for_write,
    has_no_statement,
    is_about_items,
    is_lost,
    is_refusal,
    sqlstate,
)
from ..client.refusals import for_opening, privilege, refusal, repair_of
from ..schema.opened import opened_schema
from .access import NO_RIGHT, NOT_INSTALLED, SchemaObject
from .values import RecordColumns, message_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from contextlib import AsyncExitStack

    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.outcome import Outcome
    from ..._core.trace_context import TraceHeaders
    from ..._core.values.encoding import Getter
    from ..client.access import PostgresAccess
    from ..client.notifications import Notifier
    from ..client.statements import Statements

ColumnsT = TypeVar("ColumnsT", bound=RecordColumns)


class RecordSink(SchemaObject):
    """A sink that writes items as records of a schema."""

    _run_time: ClassVar[tuple[str, ...]] = ("_connections", "_notifier")
    _parts: Mapping[str, Getter | None]
    """The functions that get the parts of a record from an item; `None` for a part without one."""

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        schema: str,
        pool_size: int | None,
    ) -> None:
        super().__init__(dsn, schema=schema, size=pool_size)
        self._notifier: Notifier | None = None

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by its SQLSTATE."""
        return classify_postgres(error)

    async def _write(self, batch: Batch[Any]) -> WriteResult:
        connections, losses = self._opened, 0
        items = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        while True:
            write = self._write_of(batch, items)
            if write is not None and write.is_empty:
                return write.answer()
            async with connections.lent(keep=True) as con:
                try:
                    if write is None:
                        await self._look_up_again(con, connections.statements)
                    else:
                        await write.run(con, connections.statements)
                except Exception as error:
                    if not (connections.may_switch and has_no_statement(error)):
                        raise
                    losses += 1
                    await connections.lost_statement(con, again=losses > 1)
                    continue
            if write is None:
                continue
            if self._notifier is not None and write.has_new:
                self._notifier.soon()
            return write.answer()

    @abstractmethod
    def _write_of(self, batch: Batch[Any], items: Sequence[Any]) -> RecordWrite[Any] | None:
        """Build the write of a batch; `None` if the destination must be looked up again first."""

    @abstractmethod
    async def _look_up(self, con: PoolConnectionProxy[Any]) -> None:
        """Check the rights of the role, and read the settings that the writes need. Raises
        `ConfigError`.
        """

    @abstractmethod
    def _notifier_on(self, connections: Connections) -> Notifier:
        """Build the notifier of the readers."""

    @property
    @abstractmethod
    def _nothing_done(self) -> str:
        """The beginning of an error: that nothing was written, and where."""

    async def _look_up_again(self, con: PoolConnectionProxy[Any], statements: Statements) -> None:
        try:
            async with statements.block(con):
                await self._look_up(con)
        except (ConfigError, MissingExtra) as error:
            raise RefusedError(self._nothing_done, repair=text_of(error)) from error

    async def _open(self, stack: AsyncExitStack) -> None:
        connections = await Connections.to(self._access)
        stack.push_async_callback(connections.close)
        try:
            async with connections.opening() as con, connections.statements.block(con):
                await opened_schema(con, self._schema)
                await self._look_up(con)
        except (ConfigError, MissingExtra):
            raise
        except Exception as error:
            raise for_opening(error, self._access.place)  # noqa: B904  # the cause is set
        self._notifier = self._notifier_on(connections)
        stack.push_async_callback(self._notifier.close)
        self._connections = connections

    def _terminate(self) -> None:
        if self._connections is not None:
            self._connections.terminate()


def getters(**given: object) -> dict[str, Getter | None]:
    """Return the functions for fields and functions given by a user. Raises `ConfigError`."""
    return {name: getter(name, value) for name, value in given.items()}


class GivenRecords(ABC, Generic[ColumnsT]):
    """The records of a batch, the index of each one's item, and the errors of the other items."""

    _kind: ClassVar[str]
    _namespace: ClassVar[UUID]

    def __init__(
        self,
        columns: ColumnsT,
        parts: Mapping[str, Getter | None],
        items: Sequence[Any],
        tokens: Sequence[str],
        traces: Sequence[TraceHeaders] | None,
    ) -> None:
        self.indices: list[int] = []
        self.columns = columns
        self.errors: dict[int, BaseException] = {}
        self._parts = parts
        contents: list[Any] = []
        for index, item in enumerate(items):
            try:
                trace = NO_TRACE if traces is None else traces[index]
                contents.append(self._enter(item, tokens[index], trace))
            except Exception as error:
                self._cut(len(contents))
                self.errors[index] = self._error(error)
            else:
                self.indices.append(index)
        if faults := self._encode(contents):
            for place, fault in faults.items():
                self.errors[self.indices[place]] = self._error(fault)
            self.keep([place for place in range(len(contents)) if place not in faults])

    def _error(self, error: Exception) -> BaseException:
        return item_error(f"cannot become a {self._kind}", error)

    @abstractmethod
    def _enter(self, item: Any, token: str, trace: TraceHeaders) -> Any:
        """Add all parts of a record except its contents, and return the contents."""

    @abstractmethod
    def _encode(self, contents: Sequence[Any]) -> Mapping[int, Exception]:
        """Add the contents; return the errors by place."""

    def _id(self, item: Any, token: str) -> str:
        part = self._parts["id"]
        found = None if part is None else message_id(part(item))
        return str(uuid5(self._namespace, token) if found is None else found)

    def _cut(self, length: int) -> None:
        """Drop the parts of an item that has failed."""
        columns: Any = self.columns
        for each in fields(columns):
            del getattr(columns, each.name)[length:]

    def keep(self, places: Sequence[int]) -> None:
        """Keep only the records at these places."""
        self.columns = self.columns.pick(places)
        self.indices = [self.indices[place] for place in places]


class RecordWrite(ABC, Generic[ColumnsT]):
    """Writes the records of one batch."""

    _not_items: ClassVar[frozenset[str]] = NOT_INSTALLED
    """SQLSTATEs that are not caused by a single record."""
    _right: ClassVar[str]
    """The option of `sluicegate pg install` that grants the right to write."""

    def __init__(
        self,
        schema: str,
        place: str,
        nothing_done: str,
        batch: Batch[Any],
        given: GivenRecords[ColumnsT],
    ) -> None:
        self._schema = schema
        self._place = place
        self._nothing_done = nothing_done
        self._batch = batch
        self._given = given
        self._errors = given.errors
        self._outcomes: dict[int, Outcome] = {}
        self._details: dict[int, object] = {}
        self._failed: set[object] = set()
        """Keys with a refused record."""
        if stopped := stopped_behind(batch.keys, self._errors):
            self._errors.update(stopped)
            given.keep([at for at, index in enumerate(given.indices) if index not in stopped])

    @property
    def is_empty(self) -> bool:
        """Whether there are no records."""
        return not self._given.indices

    @property
    def has_new(self) -> bool:
        """Whether a record may have been written that did not exist before."""
        return True

    @abstractmethod
    async def run(self, con: PoolConnectionProxy[Any], statements: Statements) -> None:
        """Write the records. Raises errors of the batch as a whole.

        Cancellation leaves the connection busy or in a transaction: it must be reset.
        """

    @abstractmethod
    async def _send(self, con: PoolConnectionProxy[Any], places: Sequence[int]) -> Any:
        """Write the records at these places; return the results."""

    @abstractmethod
    def _note(self, answers: Any) -> None:
        """Record the results."""

    async def _write(
        self, con: PoolConnectionProxy[Any], places: Sequence[int], together: Awaitable[Any]
    ) -> None:
        """Write the records at these places by `together`, one transaction for all; if the server
        refuses one of them, write those that it accepts. Raises errors of the batch as a whole.
        """
        try:
            answers = await together
        except Exception as error:
            if not self._may_be_items(error):
                raise self._write_error(error)  # noqa: B904  # the cause is set
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
            raise self._write_error(error)  # noqa: B904  # the cause is set

    def _forget(self, places: Sequence[int]) -> None:
        """Drop the results of a transaction that was rolled back."""
        for place in places:
            for answers in (self._errors, self._outcomes, self._details):
                answers.pop(self._given.indices[place], None)

    async def _search(self, con: PoolConnectionProxy[Any], places: Sequence[int]) -> None:
        """Write the records that the server accepts, and refuse the others."""
        if self._failed:
            places = [each for each in places if self._key(each) not in self._failed]
        if not places:
            return
        try:
            async with transaction(con):
                answers = await self._send(con, places)
        except Exception as error:
            if not self._may_be_items(error):
                raise
            if len(places) == 1:
                if is_refusal(error):
                    raise
                self._fail(places[0], for_item(error))
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

    def _fail(self, place: int, error: BaseException) -> None:
        self._errors[self._given.indices[place]] = error
        if self._batch.keys is not None:
            self._failed.add(self._key(place))

    def _may_be_items(self, error: Exception) -> bool:
        state = sqlstate(error)
        return (
            state is not None
            and state not in self._not_items
            and not is_lost(error)
            and is_about_items(error)
        )

    def _write_error(self, error: Exception) -> Exception:
        """Return the error for the whole write."""
        state, schema = sqlstate(error), f"--schema {self._schema}"
        if state in NOT_INSTALLED:
            repair = f"sluicegate pg install, with {schema}, at {self._place}"
            return refusal(error, self._nothing_done, repair)
        if classify_postgres(error) is ErrorClass.REFUSED or is_refusal(error):
            repair = repair_of(error, self._place)
            if state == NO_RIGHT:
                repair = (
                    f"sluicegate pg install, with {schema} {self._right} ROLE, at {self._place} "
                    f"({privilege(error)})"
                )
            return refusal(error, self._nothing_done, repair)
        return for_write(error, sealed=True)

    def answer(self) -> WriteResult:
        """Return the result for the batch."""
        self._errors.update(stopped_behind(self._batch.keys, self._errors, self._details))
        return WriteResult(len(self._batch), self._errors, self._outcomes, self._details)
