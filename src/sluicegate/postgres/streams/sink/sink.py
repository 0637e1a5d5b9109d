"""The sink for streams in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ...._core import checks
from ...._core.batch import RowBatch
from ...._core.errors import ClosedError, ConfigError, ErrorClass
from ...._core.keywords import known_arguments
from ...._core.opening import Openable
from ...._core.sink import Capabilities
from ...client.access import Access, need_asyncpg
from ...client.connections import Connections
from ...client.errors import classify_postgres, has_no_statement
from ...client.refusals import for_opening
from ...schema.opened import DEFAULT_SCHEMA, check_may_append, check_schema_name, opened_schema
from ..messages.notifier import notifying
from .messages import GivenMessages, MessageParts
from .write import StreamWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from asyncpg import Pool

    from ...._core.batch import Batch
    from ...._core.sink import WriteResult
    from ...client.access import PoolFactory, PostgresAccess
    from ..messages.notifier import StreamNotifier


@known_arguments()
class PostgresStreamSink(Openable):
    """Appends items as messages to streams in PostgreSQL. Each write is one transaction.

    An item that cannot become a message, or that the server refuses, fails alone with
    `PermanentError`; the other items are appended. The detail of an appended item's receipt is its
    `Appended`: position, version, id and time.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        schema: the schema in which `sluicegate pg install` has created the log.
        stream: the field that contains the name of an item's stream, or a function from an item to
            it. Also use it as the batcher's `key=`, so that the messages of a stream are appended
            in the order of their items.
        type: the field that contains a message's type, or a function from an item to it.
        data: the field that contains a message's contents, or a function from an item to it;
            default: the item itself. Contents must be representable in JSON, as in `NewMessage`.
        metadata: the field that contains a mapping with string keys, or a function from an item to
            it; default: none.
        id: the field that contains a message's id (a UUID or the text of one, or `None` for a new
            one), or a function from an item to it. A message whose id is already in the log, with
            the same contents, is delivered and not appended again. Default: an id that is the same
            in every retry of a write, so that no retry appends a message twice.
        expected: the field that contains the version that the stream must have before an item, or a
            function from an item to it (`NO_STREAM` if the stream must not exist, `None` for any
            version). If the actual version differs, the item fails with `VersionConflict`. Default:
            any.
        notify: whether readers are notified of commits, at most once per 20 ms.
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
    not suspend and connects to nothing. Opening suspends; it connects and looks up the log. It
    raises `ConfigError` for a schema without a log or with an older one, and for a wrong user,
    password, database or certificate, and `UnavailableError` if no server responds.
    """

    _run_time = ("_connections", "_notifier")

    def __init__(
        self,
        dsn: str | PostgresAccess | None = None,
        *,
        schema: str = DEFAULT_SCHEMA,
        stream: str | Callable[[Any], str],
        type: str | Callable[[Any], str],  # noqa: A002  # the part's name
        data: str | Callable[[Any], object] | None = None,
        metadata: str | Callable[[Any], Mapping[str, object] | None] | None = None,
        id: str | Callable[[Any], object] | None = None,  # noqa: A002  # the part's name
        expected: str | Callable[[Any], int | None] | None = None,
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
        self._schema = check_schema_name(schema)
        self._parts = MessageParts.of(
            stream=stream, type=type, data=data, metadata=metadata, id=id, expected=expected
        )
        self._notify = checks.flag("notify", notify)
        self._close_timeout = checks.seconds(
            "close_timeout", close_timeout, usual=checks.LONG_TIMEOUT
        )
        self._connections: Connections | None = None
        self._notifier: StreamNotifier | None = None

    @property
    def capabilities(self) -> Capabilities:
        """As many concurrent writes as connections; idempotent if items have their own ids.

        `key_prefix_safe`: in a batch with keys, nothing is appended after a refused item of the
        same key.
        """
        return Capabilities(
            key_prefix_safe=True,
            idempotent=self._parts.has_ids,
            max_concurrency=self._access.size,
        )

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by its SQLSTATE; see `classify_postgres`."""
        return classify_postgres(error)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Append every item of `batch`, in order; suspends for one round trip, or for a few if
        items are refused, and while another transaction that appends to one of the streams is open.

        Returns the refused items (`PermanentError`, `VersionConflict`, `MessageIdConflict`, and
        `KeyStopped` after a refused item of their key), the items that an earlier attempt with an
        unknown outcome had appended (`duplicate`), and an `Appended` for each appended item. Raises
        `ClosedError` while the sink is not open, `RefusedError` if the server refuses every message
        until an operator repairs the cause (a login, a permission, no log), `UnavailableError` if
        no connection can be opened, `UnknownOutcomeError` if the connection was lost, and the
        server's own error for any other failure that is not caused by an item. After such an error
        nothing is appended, or, if the outcome is unknown, all or nothing; a retry resolves this.
        Cancellation cancels the statement, which may have been applied.
        """
        if (connections := self._connections) is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        items = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        tokens, losses = batch.item_keys(), 0
        while True:
            given = GivenMessages(self._parts, items, tokens)
            write = StreamWrite(self._schema, self._access.place, batch, given)
            if write.is_empty:
                return write.answer()
            async with connections.lent(keep=True) as con:
                try:
                    await write.run(con, connections.statements)
                except Exception as error:
                    if not (connections.may_switch and has_no_statement(error)):
                        raise
                    losses += 1
                    await connections.lost_statement(con, again=losses > 1)
                    continue
            if self._notifier is not None:
                self._notifier.appended()
            return write.answer()

    async def _open(self, stack: AsyncExitStack) -> None:
        connections = await Connections.to(self._access, self._close_timeout)
        stack.push_async_callback(connections.close)
        try:
            async with connections.opening() as con, connections.statements.block(con):
                await opened_schema(con, self._schema)
                await check_may_append(con, self._schema)
        except ConfigError:
            raise
        except Exception as error:
            raise for_opening(error, self._access.place)  # noqa: B904  # the cause is set
        if self._notify:
            self._notifier = await stack.enter_async_context(notifying(connections, self._schema))
        self._connections = connections

    def _terminate(self) -> None:
        if self._connections is not None:
            self._connections.terminate()

    def __repr__(self) -> str:
        return f"PostgresStreamSink({self._access.place}, schema={self._schema!r})"
