"""The sink for tables of SQL databases, through SQLAlchemy."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

from .._core import checks
from .._core.classify import classified
from .._core.clock import LOOP_CLOCK
from .._core.errors import ClosedError, ConfigError, ErrorClass, SluicegateError, UnavailableError
from .._core.keywords import known_arguments
from .._core.opening import Openable
from .._core.sink import Capabilities
from .._core.text import text_of
from .._core.values.rows import RowMaker, RowTarget, column_names, optional_names
from .databases import dialect_of
from .engine_of import EngineGiven
from .errors import classify_sql
from .open_table import OpenSqlTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from sqlalchemy import URL, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from .._core.batch import Batch
    from .._core.sink import WriteResult


logger = logging.getLogger("sluicegate.sql")
ANSWER_WITHIN = 20.0
"""Seconds for connecting and reading the table when the sink is opened."""


@known_arguments()
class SqlSink(Openable):
    """Writes items as rows of one table of PostgreSQL, MySQL, MariaDB or SQLite, with SQLAlchemy 2.

    A write is one transaction. A row that the database refuses, or that it would silently change,
    fails alone with `PermanentError`; the other rows are stored. Items become rows as in
    `PostgresSink`, which is faster and has more features for PostgreSQL.

    Args:
        url: an SQLAlchemy URL, such as `"mysql+asyncmy://user:password@host/database"`, with an
            async driver, or with any other driver, which runs in threads; the password is never
            shown. Or an `Engine`, an `AsyncEngine`, or a function that returns one; an engine that
            you pass stays open.
        table: the table's name, taken literally.
        columns: the columns in which a row's values are stored.
        schema: the table's schema; default: the connection's.
        on_conflict: `"error"`: a row whose unique key exists is refused. `"ignore"`: the existing
            row stays, and the item is delivered. `"update"`: the existing row is replaced; of
            several rows with the same key in a batch, the last one takes effect.
        conflict_columns: the unique key that determines conflicts; default: for `"update"` the
            primary key, or the first unique key within `columns`. MySQL and MariaDB always use all
            unique keys.
        update_columns: the columns that `"update"` replaces, besides the version; default: every
            other column.
        version_column: with `"update"`, replace only rows with a lower version, or with none. A row
            without a version is refused.
        row: a function from an item to its row.
        returning: columns of the stored row, such as a generated number, for the item's receipt:
            its `detail` is then a dictionary of them. An item whose row was skipped, or replaced by
            a later row of its batch, has none. Not available with MySQL; with MariaDB only if no
            row can be skipped.
        pool_size: number of connections, and therefore of concurrent writes; default 10, or 1 for
            SQLite, which allows one writer at a time.
        engine_options: any options of `sqlalchemy.create_engine`, such as `connect_args`.
        close_timeout: seconds for closing, and for ending a cancelled write; default 5. Then the
            connections are broken.
        prepared_statements: for PostgreSQL. `"auto"`: psycopg prepares no statements behind a
            pooler, and asyncpg is refused there. `True`: statements are prepared without a test for
            a pooler, which must then work in session mode. Default `"auto"`.

    Raises `ConfigError` for a bad argument and `MissingExtra` without SQLAlchemy. Constructing does
    not suspend and connects to nothing. Opening suspends; it connects and reads the table. It
    raises `ConfigError` for a refused login, a table that does not exist or that the rows do not
    fit, a pooler that mixes up prepared statements, and a driver that is not installed; and
    `UnavailableError` if no server responds.
    """

    _run_time = ("_table",)

    def __init__(
        self,
        url: str | URL | Engine | AsyncEngine | Callable[[], Engine | AsyncEngine],
        *,
        table: str,
        columns: Sequence[str],
        schema: str | None = None,
        on_conflict: Literal["error", "ignore", "update"] = "error",
        conflict_columns: Sequence[str] | None = None,
        update_columns: Sequence[str] | None = None,
        version_column: str | None = None,
        row: Callable[[Any], Sequence[Any]] | None = None,
        returning: Sequence[str] | None = None,
        pool_size: int | None = None,
        engine_options: Mapping[str, Any] | None = None,
        close_timeout: float | timedelta = 5.0,
        prepared_statements: Literal["auto", True] = "auto",
    ) -> None:
        self._target = RowTarget(
            table=table,
            schema=schema,
            columns=column_names("columns", columns),
            mode=on_conflict,
            conflict=optional_names("conflict_columns", conflict_columns),
            update=optional_names("update_columns", update_columns),
            version=version_column,
            returning=optional_names("returning", returning) or (),
        )
        rule = "must be a function of an item"
        self._row: Any = checks.optional_function("row", row, rule)
        self._engine = EngineGiven.of(
            url,
            size=checks.optional_count("pool_size", pool_size),
            options=engine_options,
            close_timeout=checks.seconds("close_timeout", close_timeout, usual=checks.LONG_TIMEOUT),
            prepared=prepared_statements,
        )
        self._table: OpenSqlTable | None = None

    @property
    def capabilities(self) -> Capabilities:
        """As many concurrent writes as connections; idempotent unless a conflict is an error. An
        open sink is then repeatable if the table has a unique key among the columns: rows of an
        earlier attempt are found by it.

        `key_prefix_safe`: in a batch with keys, no row is written after a refused row of the same
        key.
        """
        has_key = self._table is not None and self._table.plan.key is not None
        return Capabilities(
            idempotent=self._target.mode != "error",
            repeatable="item" if has_key else None,
            key_prefix_safe=True,
            max_concurrency=self._engine.size,
        )

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by the database's code; see `classify_sql`."""
        return classify_sql(error)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch` as a row, in one transaction.

        Suspends. Returns the refused items (`PermanentError`, `TooLargeError`, or `KeyStopped`
        after a refused item of their key) and the items that an earlier attempt with an unknown
        outcome had stored (`duplicate`). If conflicts are errors, that is so only if the stored row
        has the same values; an item of a key with other values fails with `StoredRowDiffers`, or
        with `KeyRepeated` behind an item of the batch with its key. Raises `ClosedError` while the
        sink is not open;
        `RefusedError` if the table was altered so that no row fits; `TransientError` if the
        connection was lost before anything could be stored; `UnknownOutcomeError` if it was lost
        later; `UnverifiableError` if an earlier attempt is unknown and its rows cannot be found; and
        the client's own error for everything else, which `classify` recognizes. A cancelled write
        may have been stored.
        """
        if self._table is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        if not len(batch):
            return None
        return await self._table.store(batch)

    async def _open(self, stack: AsyncExitStack) -> None:
        engine = self._engine.made()
        stack.push_async_callback(engine.close)
        dialect = dialect_of(engine.sync.dialect.name, prepares=self._engine.prepares)
        table = OpenSqlTable(
            engine, self._target, dialect, RowMaker(self._target.columns, self._row)
        )
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + ANSWER_WITHIN):
                await table.read()
                await table.check_rights()
        except ConfigError:
            raise
        except TimeoutError as error:
            told = f"no database answers at {self._engine.place} within {ANSWER_WITHIN:g} s"
            raise UnavailableError(told) from error
        except Exception as error:
            raise self._opening_error(error) from error
        if table.plan.doubt is not None:
            logger.warning("%r: %s", self, table.plan.doubt)
        self._table = table

    def _opening_error(self, error: Exception) -> SluicegateError:
        place, told = self._engine.place, text_of(error)
        if classified(error, classify_sql) is ErrorClass.REFUSED:
            return ConfigError(f"url={place}: the database refuses ({told})")
        return UnavailableError(f"no database answers at {place} ({told})")

    def __repr__(self) -> str:
        return f"SqlSink({self._engine.place}, table={self._target.table!r})"
