"""The sink for queues in PostgreSQL.

1. All jobs of a batch are enqueued by one call of the SQL function `enqueue`, or by several calls in
   one transaction if the JSON is long. The server leaves out jobs that were enqueued before.
2. A full queue throttles the whole write. A batch with more jobs than the queue can hold is refused.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..._core.checks import bad
from ..._core.classify import caused
from ..._core.errors import RefusedError, ThrottledError
from ..._core.keywords import known_arguments
from ..._core.outcome import Outcome
from ..._core.sink import Capabilities, WriteResult
from ..._core.trace_context import item_traces
from ..client.access import PostgresAccess
from ..client.answers import transaction
from ..client.errors import (
    message_of,
    sqlstate,
)
from ..client.notifications import Notifier
from ..client.refusals import refusal
from ..records.access import NOT_INSTALLED
from ..records.sink import GivenRecords, RecordSink, RecordWrite, getters
from ..records.values import json_texts_of
from ..schema.opened import DEFAULT_SCHEMA
from .enqueue import (
    FULL,
    LONGEST_PAYLOAD,
    NEW,
    NO_QUEUE,
    NO_SLOT,
    Enqueued,
    JobColumns,
    create_command,
    due_text,
    enqueue_statement,
    headers_text,
    job_key,
    job_priority,
    max_depth_query,
    opened_queue,
    queue_channel,
    queue_name,
    queueing_lock,
)
from .ring import ring_slot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.trace_context import TraceHeaders
    from ..._core.values.encoding import Getter
    from ..client.connections import Connections
    from ..client.statements import Statements
    from .ring import SlotFunction

Answer = tuple["Sequence[int]", "list[Record]"]
"""The places of the jobs of one call, and the returned rows."""

PART = 32 << 20
"""Maximum size of the JSON in one call, in characters."""
FULL_SECONDS = 1.0
"""Minimum throttle delay of a full queue, in seconds: consumers free capacity continuously."""


@known_arguments(access=PostgresAccess)
class PostgresQueueSink(RecordSink):
    """Enqueues items as jobs of a queue in PostgreSQL. Each write is one transaction.
    Consumers are notified of commits, at most once per 20 ms.

    An item that cannot become a job, or that the server refuses, fails alone with `PermanentError`;
    the other items are enqueued. The detail of an item's receipt is an `Enqueued`: the job's place
    and id, or the reason why it was left out.

    Each argument from `key` to `queueing_lock` is the name of a field of the items, or a function
    from an item to the value.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        queue: the queue's name. The queue must exist: `sluicegate queue create`.
        schema: the schema in which `sluicegate pg install` has created the queues; default
            `"sluicegate"`.
        key: the job's key, text or a whole number below 2^128: the jobs of a key are handled one
            after another, in the order of their commits. Also use it as the batcher's `key=`, so
            that they are enqueued in the order of their items. `None`, the default, means a job
            without a key, which is unordered.
        payload: the job's contents, which must be representable in JSON; default: the item itself.
        headers: a mapping from names to values that are representable in JSON; default: none.
        due: a `datetime` with a time zone, before which the job is not handled; default: `None`,
            immediately. When a job with a key is due, it is queued after the waiting jobs of its
            key.
        priority: a 16-bit integer; jobs with a higher priority come first, except within a key.
            Default: 0.
        id: the job's id (a UUID or the text of one, or `None` for a new one). A job whose id was
            enqueued before is left out: its item is a `duplicate`. Default: an id that is the same
            in every retry of a write, so that no retry enqueues a job twice.
        queueing_lock: a string that at most one waiting job may have. While that job waits, another
            one is left out: its item is a `duplicate`, and the detail's state is `"locked"`.
            Default: none.
        pool_size: number of connections, and therefore of concurrent writes; default 10.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Constructing does
    not suspend and connects to nothing. Opening suspends; it connects and looks up the queue. It
    raises `ConfigError` for a missing or older schema, a missing queue, a role without permission
    to enqueue, and a wrong user, password, database or certificate; `MissingExtra` for a queue
    whose slot function is `blake3` if that package is not installed; and `UnavailableError` if no
    server responds.
    """

    _run_time = ("_connections", "_notifier", "_function")

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        queue: str,
        schema: str = DEFAULT_SCHEMA,
        key: str | Callable[[Any], str | int | None] | None = None,
        payload: str | Callable[[Any], object] | None = None,
        headers: str | Callable[[Any], Mapping[str, object] | None] | None = None,
        due: str | Callable[[Any], datetime | None] | None = None,
        priority: str | Callable[[Any], int | None] | None = None,
        id: str | Callable[[Any], object] | None = None,  # noqa: A002  # the name of the part
        queueing_lock: str | Callable[[Any], str | None] | None = None,
        pool_size: int | None = None,
    ) -> None:
        super().__init__(dsn, schema=schema, pool_size=pool_size)
        self._queue = queue_name(queue)
        self._parts = getters(
            key=key,
            payload=payload,
            headers=headers,
            due=due,
            priority=priority,
            id=id,
            queueing_lock=queueing_lock,
        )
        self._function: SlotFunction | None = None
        """How the slots of keys are computed; `None` to look it up again."""

    @property
    def capabilities(self) -> Capabilities:
        """As many concurrent writes as connections. Idempotent if items have their own ids and no
        queueing lock, since a lock is free again once its job was handled.

        `key_prefix_safe`: in a batch with keys, nothing is enqueued after a refused item of the
        same key.
        """
        return Capabilities(
            key_prefix_safe=True,
            idempotent=self._parts["id"] is not None and self._parts["queueing_lock"] is None,
            max_concurrency=self._access.size,
        )

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Enqueue every item of `batch`, in order; suspends for one round trip, or for a few if
        items are refused, and while another transaction enqueues a job with one of the ids.

        Returns the refused items (`PermanentError`, and `KeyStopped` after a refused item of their
        key), the items that were left out (`duplicate`), and an `Enqueued` for each item that was
        not refused. Raises `ClosedError` while the sink is not open, `ThrottledError` if the queue
        is full, `RefusedError` if the server refuses every job until an operator repairs the cause
        (a login, a permission, no such queue, a `max_depth` below the size of the batch),
        `UnavailableError` if no connection can be opened, `UnknownOutcomeError` if the connection
        was lost, and the server's own error for any other failure that is not caused by an item.
        After such an error nothing is enqueued, or, if the outcome is unknown, all or nothing; a
        retry resolves this. Cancellation cancels the statement, which may have been applied.
        """
        try:
            return await self._write(batch)
        except Exception as error:
            if sqlstate(error.__cause__ or error) in {NO_QUEUE, NO_SLOT}:
                self._function = None
            raise

    def _write_of(self, batch: Batch[Any], items: Sequence[Any]) -> _QueueWrite | None:
        if self._function is None:
            return None
        given = _GivenJobs(
            self._parts, self._function, items, batch.item_keys(), item_traces(batch)
        )
        return _QueueWrite(
            self._schema, self._access.place, self._nothing_done, batch, given, queue=self._queue
        )

    async def _look_up(self, con: PoolConnectionProxy[Any]) -> None:
        self._function = await opened_queue(con, self._schema, self._queue)

    def _notifier_on(self, connections: Connections) -> Notifier:
        readers = f"consumers of the queues in {self._schema!r}"
        return Notifier(connections, queue_channel(self._schema), readers)

    @property
    def _nothing_done(self) -> str:
        return f"nothing enqueued in {self._queue!r}"

    def __repr__(self) -> str:
        return (
            f"PostgresQueueSink({self._access.place}, queue={self._queue!r}, "
            f"schema={self._schema!r})"
        )


class _GivenJobs(GivenRecords[JobColumns]):
    """The jobs of a batch."""

    _kind = "job"
    _namespace = UUID("3f8f3c0e-55b7-4c0c-9c69-0f5a6f6b7f0d")

    def __init__(
        self,
        parts: Mapping[str, Getter | None],
        function: SlotFunction,
        items: Sequence[Any],
        tokens: Sequence[str],
        traces: Sequence[TraceHeaders] | None,
    ) -> None:
        self._function: SlotFunction = function
        super().__init__(JobColumns(), parts, items, tokens, traces)

    def _enter(self, item: Any, token: str, trace: TraceHeaders) -> Any:
        parts, columns = self._parts, self.columns
        key = None if (part := parts["key"]) is None else part(item)
        columns.keys.append(job_key(key))
        columns.slots.append(None if key is None else self._slot(key))
        headers = None if (part := parts["headers"]) is None else part(item)
        columns.headers.append(headers_text(headers, trace))
        columns.due.append(None if (part := parts["due"]) is None else due_text(part(item)))
        columns.priorities.append(
            None if (part := parts["priority"]) is None else job_priority(part(item))
        )
        columns.ids.append(self._id(item, token))
        columns.locks.append(
            None if (part := parts["queueing_lock"]) is None else queueing_lock(part(item))
        )
        return item if (part := parts["payload"]) is None else part(item)

    def _slot(self, key: str | int) -> int | None:
        """The slot to send; the server itself computes SHA-256 from the key's text."""
        return None if self._function == "sha256" else ring_slot(key, self._function)

    def _encode(self, contents: Sequence[Any]) -> Mapping[int, Exception]:
        texts, faults = json_texts_of("payload", contents)
        self.columns.payloads.extend(texts)
        for place, text in enumerate(texts):
            if len(text) > LONGEST_PAYLOAD:
                rule = f"must be at most {LONGEST_PAYLOAD} characters of JSON long"
                faults[place] = bad("payload", f"{len(text)} characters", rule)
        return faults


class _QueueWrite(RecordWrite[JobColumns]):
    """Enqueues the jobs of one batch."""

    _not_items = NOT_INSTALLED | {NO_QUEUE, FULL, NO_SLOT}
    _right = "--enqueue"

    def __init__(
        self,
        schema: str,
        place: str,
        nothing_done: str,
        batch: Batch[Any],
        given: _GivenJobs,
        *,
        queue: str,
    ) -> None:
        super().__init__(schema, place, nothing_done, batch, given)
        self._queue = queue

    @property
    def has_new(self) -> bool:
        """Whether a job was enqueued that did not exist before."""
        return len(self._details) > len(self._outcomes)

    async def run(self, con: PoolConnectionProxy[Any], statements: Statements) -> None:
        """See `RecordWrite`."""
        everything = range(len(self._given.indices))
        try:
            await self._write(con, everything, self._together(con, statements, everything))
        except ThrottledError as error:
            if sqlstate(error.__cause__ or error) != FULL:
                raise
            async with statements.block(con):
                depth = await con.fetchval(max_depth_query(self._schema), self._queue)
            if depth is None or len(everything) <= depth:
                raise
            repair = f"give the queue a max_depth above {depth}, or the batcher smaller batches"
            told = f"{self._nothing_done}: the batch has {len(everything)} jobs"
            raise caused(RefusedError(told, repair=repair), error)  # noqa: B904  # it has its cause

    async def _together(
        self, con: PoolConnectionProxy[Any], statements: Statements, places: Sequence[int]
    ) -> list[Answer]:
        async with self._transaction(con, statements, places):
            return await self._send(con, places)

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

    async def _send(self, con: PoolConnectionProxy[Any], places: Sequence[int]) -> list[Answer]:
        statement = enqueue_statement(self._schema)
        return [
            (part, await con.fetch(statement, self._queue, *self._given.columns.pick(part).values))
            for part in self._parts(places)
        ]

    def _note(self, answers: Sequence[Answer]) -> None:
        ids = self._given.columns.ids
        for places, rows in answers:
            for place, (state, found) in zip(places, rows, strict=True):
                index = self._given.indices[place]
                self._details[index] = Enqueued(found, UUID(ids[place]), state)
                if state != NEW:
                    self._outcomes[index] = Outcome.DUPLICATE

    def _write_error(self, error: Exception) -> Exception:
        state = sqlstate(error)
        if state == FULL:
            text = f"{self._nothing_done}: {message_of(error)}"
            return caused(ThrottledError(text, retry_after=FULL_SECONDS), error)
        if state == NO_QUEUE:
            command = create_command(self._schema, self._queue)
            return refusal(error, self._nothing_done, f"{command}, for {self._place}")
        if state == NO_SLOT:
            repair = "the slot function is read again by the next write"
            return refusal(error, self._nothing_done, repair)
        return super()._write_error(error)
