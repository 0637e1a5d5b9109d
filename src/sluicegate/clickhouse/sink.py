"""Rows and columns to a ClickHouse table, over HTTP."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from .._core import checks
from .._core.batch import RowBatch
from .._core.classify import causes, distinct
from .._core.errors import (
    ClosedError,
    ConfigError,
    RefusedError,
    ResultMismatch,
    UnavailableError,
    UnknownOutcomeError,
)
from .._core.extras import need
from .._core.keywords import known_arguments
from .._core.sink import Capabilities, WriteResult
from .._core.values.rows import check_name, optional_names
from ..http.client import HttpBase
from ..http.config import MAX_BYTES, HttpAccess, access_of, endpoint
from ..http.write import RequestFormat
from .errors import ALTERED, ClickHouseError, code_of, for_code
from .server import TOKEN_SETTING, TableName, base_url, check_settings, keeps_tokens, own_settings
from .table import WatchedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack

    from .._core.batch import Batch
    from .._core.errors import SinkError
    from ..http.write import HttpResponse

logger = logging.getLogger("sluicegate.clickhouse")
_NO_ITEMS: RowBatch[Any] = RowBatch(())
"""The items of a SELECT request: none."""
_SHOWN = 8192
"""Bytes of a response that are searched for an exception."""


@known_arguments(access=HttpAccess)
class ClickHouseSink(HttpBase):
    """Writes items as rows of one ClickHouse table, by INSERTs over HTTP.

    A batch of at most `max_bytes` is one INSERT, and therefore one block, which ClickHouse stores
    completely or not at all in each partition. A row that does not fit fails alone with
    `PermanentError`. Most such rows are found before they are sent; if the server refuses an
    INSERT, its rows are sent again in parts until the bad rows are isolated.

    `max_bytes` and `pool_size` are those of `HttpSink`.

    Args:
        url: the server's URL, such as `"https://host:8443"`, or an `HttpAccess`. A user and
            password in it, or `HttpAccess(url, auth=(user, password))`, are the login.
        table: the table's name, taken literally.
        columns: the columns to write, for each of which a row has a value; default: every column of
            the table that accepts values. Omitted columns get their DEFAULT.
        database: the database's name; default: the user's.
        format: `"arrow"` (default) sends ArrowStream: batches of columns without conversion to
            rows, and rows as columns. `"json"` sends JSONEachRow, which every server supports, even
            for `Variant` and `Dynamic`.
        row: a function from an item to its row, a sequence. By default the values of sequences are
            taken by position, those of mappings and objects by column name.
        deduplicate: send a token with each INSERT, equal if and only if the same rows are sent
            again, so that the server stores them once. Requires a table that keeps tokens: a
            replicated table, or one with `non_replicated_deduplication_window`.
        async_insert: let the server combine INSERTs of many clients. The sink still waits until the
            rows are stored.
        settings: additional settings of the INSERTs, such as `{"insert_quorum": 2}`.
        compression: of bodies: `"gzip"`, `"zstd"` or `None` (default).

    Raises `ConfigError` for a bad argument and `MissingExtra` without httpx or pyarrow.
    Constructing does not suspend. Opening suspends; it reads the table's columns and the server's
    settings. It raises `ConfigError` for a refused login, a table that does not exist or does not
    fit, and a server that is too old for the arguments, and `UnavailableError` if no server
    responds.
    """

    _run_time = ("_client", "_room", "_table", "_keeps_tokens")

    def __init__(
        self,
        url: str | HttpAccess,
        *,
        table: str,
        columns: Sequence[str] | None = None,
        database: str | None = None,
        format: Literal["arrow", "json"] = "arrow",  # noqa: A002  # ClickHouse's term
        row: Callable[[Any], Sequence[Any]] | None = None,
        deduplicate: bool = True,
        async_insert: bool = False,
        settings: Mapping[str, str | float] | None = None,
        compression: Literal["gzip", "zstd"] | None = None,
        max_bytes: int | None = MAX_BYTES,
        pool_size: int | None = None,
    ) -> None:
        access = access_of(url)
        check_name("table", table)
        if database is not None:
            check_name("database", database)
        self._name = TableName(table, database)
        self._columns = optional_names("columns", columns)
        self._is_arrow = checks.choice("format", format, ("arrow", "json")) == "arrow"
        if self._is_arrow:
            need("pyarrow", "clickhouse", 'ClickHouseSink(format="arrow")')
        self._row: Any = checks.optional_function("row", row, "must be a function of an item")
        self._deduplicate = checks.flag("deduplicate", deduplicate)
        self._settings = check_settings(settings)
        self._own = own_settings(
            deduplicate=deduplicate, async_insert=checks.flag("async_insert", async_insert)
        )
        kind = "application/vnd.apache.arrow.stream" if self._is_arrow else "application/json"
        super().__init__(
            endpoint(
                access,
                base_url(access.url),
                own_headers={"content-type": kind},
                compression=compression,
                max_bytes=max_bytes,
                pool_size=pool_size,
            ),
            reads_answers=True,
        )
        self._is_async = async_insert
        self._table: WatchedTable | None = None
        self._keeps_tokens: bool | None = None

    @property
    def capabilities(self) -> Capabilities:
        """One concurrent write per connection; `columnar` with `format="arrow"`.

        Not idempotent: a token identifies the rows of a whole INSERT, so an item in another batch
        is stored again. The same INSERT is repeatable if the table of the open sink keeps tokens,
        without `async_insert`. Not `key_prefix_safe`: a refused row does not stop a later row of its key.
        """
        return Capabilities(
            columnar=self._is_arrow,
            repeatable="write" if self._keeps_tokens and not self._is_async else None,
            max_concurrency=self._endpoint.pool_size,
        )

    def refused_columns(self, schema: Any) -> Mapping[str, str]:
        """The columns of a `pyarrow.Schema` that this sink cannot write, and missing columns, each
        with the remedy.

        Empty while the sink is closed, since the table's columns are then unknown. Does not
        suspend.
        """
        return {} if self._table is None else self._table.current.refused_columns(schema)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Send every item of `batch`, in order; suspends for one request, or for several if the
        batch exceeds `max_bytes` or the server refuses rows.

        An item fails with `PermanentError` (it does not fit), `ThrottledError` (too many parts of
        the table, too many queries), `TransientError`, `UnavailableError`, `RefusedError` (the
        table is missing or altered, the user has no permission to write, the disk is full), or
        `UnknownOutcomeError` (no response, or one that does not tell whether the rows were stored).
        The table is read again before a row fails for its values. The columns are compared before a
        write if the last comparison is more than a second old, and after each INSERT: an item whose
        values do not fit a column that was altered in between fails with `PermanentError`, and may
        be stored with changed values. Exceptions and cancellation are
        those of `HttpSink`.
        """
        watched = self._table
        if watched is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        table, records = await watched.encode(batch)
        url = table.insert_url(self._endpoint.url, batch, self._own, self._settings)

        def url_of(part: Batch[Any]) -> str:
            return f"{url}&{TOKEN_SETTING}={quote(part.write_key)}" if self._deduplicate else url

        def parse(response: HttpResponse, part: Batch[Any]) -> WriteResult | None:
            self._check_answer(response)
            misfits = watched.misfits(table, part)
            return WriteResult(len(part), misfits) if misfits else None

        request_format = RequestFormat(
            table.join, self._endpoint.max_bytes, parse, url_of, watched.look
        )
        result = await self._send(batch, records, request_format)
        if result is not None and any(map(_is_altered, distinct(result.errors.values()))):
            watched.suspect()
        return result

    def _check_answer(self, response: HttpResponse) -> None:
        """Raise the error of a response that only appears to be a success."""
        text = response.body[:_SHOWN].decode(errors="replace")
        code = code_of(response.headers, text)
        if code is not None:
            shown = response.redact(text)
            raise self._error(code, response.status, shown, response.retry_after)
        if response.body.strip():
            raise ResultMismatch(
                f"the answer from {self._endpoint.place} is not empty, as ClickHouse's answer to "
                "an INSERT is; the outcome of every item is unknown"
            )

    def _known_failure(
        self, status: int, headers: Mapping[str, str], text: str, retry_after: float | None
    ) -> SinkError | None:
        code = code_of(headers, text)
        return None if code is None else self._error(code, status, text, retry_after)

    def _error(self, code: int, status: int, text: str, retry_after: float | None) -> SinkError:
        place, table = self._endpoint.place, self._name.shown
        return for_code(
            code, text, status=status, place=place, table=table, retry_after=retry_after
        )

    # -- opening, and reading the table ------------------------------------------------------------

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)
        table = WatchedTable(
            self._ask,
            self._name,
            self._columns,
            self._row,
            deduplicate=self._deduplicate,
            is_arrow=self._is_arrow,
        )
        try:
            await table.read()
        except RefusedError as error:
            raise ConfigError(str(error)) from error
        self._table = table
        self._keeps_tokens = (
            await keeps_tokens(self._ask, self._name) if self._deduplicate else None
        )
        if self._keeps_tokens is False:
            logger.warning(
                "%r: the table keeps no deduplication tokens, so rows of an unknown outcome may be "
                "stored twice; set its non_replicated_deduplication_window, or pass "
                "deduplicate=False",
                self,
            )

    async def _ask(self, query: str) -> bytes:
        """The response to a SELECT. It has no effect, so it leaves no item unknown."""
        client, room = self._client, self._room
        if client is None or room is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        try:
            response = await self._post(client, room, None, query.encode(), _NO_ITEMS)
        except UnknownOutcomeError as error:
            raise UnavailableError(str(error)) from error
        code = code_of(response.headers, "")
        if code is not None:
            raise self._error(code, response.status, "", response.retry_after)
        return response.body

    def __repr__(self) -> str:
        return f"ClickHouseSink({self._endpoint.place}, table={self._name.quoted})"


def _is_altered(error: BaseException) -> bool:
    """Whether an error may mean that the table has changed."""
    return any(isinstance(each, ClickHouseError) and each.code in ALTERED for each in causes(error))
