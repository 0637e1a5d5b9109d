"""The sink for queues in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ...._core import checks
from ...._core.batch import RowBatch
from ...._core.errors import ClosedError, ConfigError, ErrorClass, MissingExtra, RefusedError
from ...._core.keywords import known_arguments
from ...._core.opening import Openable
from ...._core.sink import Capabilities
from ...._core.text import text_of
from ...client.access import Access, need_asyncpg
from ...client.connections import Connections
from ...client.errors import classify_postgres, has_no_statement, sqlstate
from ...client.refusals import for_opening
from ...schema.opened import DEFAULT_SCHEMA, check_schema_name, opened_schema
from ..jobs.enqueue import NO_QUEUE, NO_SLOT, opened_queue
from ..jobs.job import queue_name
from ..jobs.notifier import notifying_consumers
from .jobs import GivenJobs, JobParts
from .write import QueueWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack
    from datetime import datetime, timedelta

    from asyncpg import Pool
    from asyncpg.pool import PoolConnectionProxy

    from ...._core.batch import Batch
    from ...._core.sink import WriteResult
    from ...client.access import PoolFactory, PostgresAccess
    from ...client.notifier import Notifier
    from ..jobs.slots import SlotFunction


@known_arguments()
class PostgresQueueSink(Openable):
    """Enqueues items as jobs of a queue in PostgreSQL. Each write is one transaction.

    An item that cannot become a job, or that the server refuses, fails alone with `PermanentError`;
    the other items are enqueued. The detail of an item's receipt is an `Enqueued`: the job's place
    and id, or the reason why it was left out.

    Each argument from `key` to `queueing_lock` is the name of a field of the items, or a function
    from an item to the value.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        queue: the queue's name. The queue must exist: `sluicegate queue create`.
        schema: the schema in which `sluicegate pg install` has created the queues.
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
        notify: whether consumers are notified of commits, at most once per 20 ms.
        pool: an asyncpg pool of the application, or a function, async or not, that returns one,
            instead of `dsn`. A pool cannot be pickled, a function can.
        close_pool: whether closing the sink closes that pool; default: only if a function returned
            it.
        pool_size: number of connections, and therefore of concurrent writes; default 10.
        close_timeout: seconds for closing, and for resetting a connection after a cancelled write,
            before it is terminated. Default 5.
        statement_timeout: time limit of one statement on the server, in seconds; default: the
            server's.
        prepared_statements: as in `PostgresSink`.

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
        dsn: str | PostgresAccess | None = None,
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
        notify: bool = True,
        pool: Pool[Any] | PoolFactory | None = None,
        close_pool: bool | None = None,
        pool_size: int | None = None,
        close_timeout: float | timedelta = 5.0,
        statement_timeout: float | timedelta | None = None,
        prepared_statements: Literal["auto"] | bool = "auto",
    ) -> None:
        access = Access.of(
            dsn,
            pool=pool,
            close_pool=close_pool,
            size=pool_size,
            timeout=statement_timeout,
            prepared=prepared_statements,
        )
        need_asyncpg()
        # first, and by these names, for the error message about pickling
        self._pool, self._connect_options = access.pool, access.options
        self._access = access
        self._queue = queue_name(queue)
        self._schema = check_schema_name(schema)
        self._parts = JobParts.of(
            key=key,
            payload=payload,
            headers=headers,
            due=due,
            priority=priority,
            id=id,
            queueing_lock=queueing_lock,
        )
        self._notify = checks.flag("notify", notify)
        self._close_timeout = checks.seconds(
            "close_timeout", close_timeout, usual=checks.LONG_TIMEOUT
        )
        self._connections: Connections | None = None
        self._notifier: Notifier | None = None
        self._function: SlotFunction | None = None

    @property
    def capabilities(self) -> Capabilities:
        """As many concurrent writes as connections. Idempotent if items have their own ids and no
        queueing lock, since a lock is free again once its job was handled.

        `key_prefix_safe`: in a batch with keys, nothing is enqueued after a refused item of the
        same key.
        """
        return Capabilities(
            key_prefix_safe=True,
            idempotent=self._parts.id is not None and self._parts.queueing_lock is None,
            max_concurrency=self._access.size,
        )

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by its SQLSTATE; see `classify_postgres`."""
        return classify_postgres(error)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Enqueue every item of `batch`, in order; suspends for one round trip, or for a few if
        items are refused, and while another transaction enqueues a job with one of the ids.

        Returns the refused items (`PermanentError`, and `KeyStopped` after a refused item of their
        key), the items that were left out (`duplicate`), and an `Enqueued` for each item that was
        not refused. Raises `ClosedError` while the sink is not open, `ThrottledError` if the queue
        is full, `RefusedError` if the server refuses every job until an operator repairs the cause
        (a login, a permission, no such queue), `UnavailableError` if no connection can be opened,
        `UnknownOutcomeError` if the connection was lost, and the server's own error for any other
        failure that is not caused by an item. After such an error nothing is enqueued, or, if the
        outcome is unknown, all or nothing; a retry resolves this. If a batch has more items than
        the queue's `max_depth`, the first ones are enqueued and the others fail with
        `ThrottledError`. Cancellation cancels the statement, which may have been applied.
        """
        if (connections := self._connections) is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        losses = 0
        while True:
            write = self._write_of(batch)
            if write is not None and write.is_empty:
                return write.answer()
            async with connections.lent(keep=True) as con:
                try:
                    if write is None:
                        await self._read_again(con, connections)
                    else:
                        await write.run(con, connections.statements)
                except Exception as error:
                    if sqlstate(error.__cause__ or error) in {NO_QUEUE, NO_SLOT}:
                        self._function = None
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

    def _write_of(self, batch: Batch[Any]) -> QueueWrite | None:
        """The write of a batch; `None` if the queue must be read again first."""
        if self._function is None:
            return None
        items = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        given = GivenJobs(self._parts, self._function, items, batch.item_keys())
        return QueueWrite(self._schema, self._queue, self._access.place, batch, given)

    async def _read_again(self, con: PoolConnectionProxy[Any], connections: Connections) -> None:
        """Read the queue again after it was missing or its slot function was changed."""
        try:
            async with connections.statements.block(con):
                self._function = await opened_queue(con, self._schema, self._queue)
        except (ConfigError, MissingExtra) as error:
            what = f"nothing enqueued in {self._queue!r}"
            raise RefusedError(what, repair=text_of(error)) from error

    async def _open(self, stack: AsyncExitStack) -> None:
        connections = await Connections.to(self._access, self._close_timeout)
        stack.push_async_callback(connections.close)
        try:
            async with connections.opening() as con, connections.statements.block(con):
                await opened_schema(con, self._schema)
                self._function = await opened_queue(con, self._schema, self._queue)
        except (ConfigError, MissingExtra):
            raise
        except Exception as error:
            raise for_opening(error, self._access.place)  # noqa: B904  # the cause is set
        if self._notify:
            self._notifier = await stack.enter_async_context(
                notifying_consumers(connections, self._schema)
            )
        self._connections = connections

    def _terminate(self) -> None:
        if self._connections is not None:
            self._connections.terminate()

    def __repr__(self) -> str:
        return (
            f"PostgresQueueSink({self._access.place}, queue={self._queue!r}, "
            f"schema={self._schema!r})"
        )
