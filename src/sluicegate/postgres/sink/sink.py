"""The sink for a PostgreSQL table."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ..._core.batch import RowBatch
from ..._core.checks import bad
from ..._core.errors import ClosedError, ErrorClass
from ..._core.keywords import known_arguments
from ..._core.values.rows import column_names, optional_names
from ..client.access import Access, PostgresAccess, need_asyncpg
from ..client.connections import Connections
from ..client.errors import classify_postgres
from ..client.names import qualified
from .growth import GrowthSettings, is_there
from .ledger import UnitLedger
from .open_table import OpenTable, Settings
from .positions import PositionsInTable, PositionTable
from .stages import TableProgress, TableStages
from .strategy import Target, WriteStrategy
from .write import TableWriter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AsyncExitStack

    from ..._core.batch import Batch
    from ..._core.positions import PositionUnit
    from ..._core.sink import Capabilities, WriteResult
    from ..._core.transaction import Transaction, Unit
    from ..._core.values.rows import RowFunction
    from .changes import Changes
    from .positions import PositionOwner


@known_arguments(access=PostgresAccess)
class PostgresSink(PositionsInTable):
    """Writes items as rows of one PostgreSQL table. Each write is atomic, except for refused rows.

    An item is a tuple or list with a value per column, a mapping by column name, a dataclass or
    other object with such attributes, or anything that `row` turns into a row. An item that cannot
    become a row, or that the server refuses, fails alone with `PermanentError`, whose cause is the
    error; the other items are delivered. However many rows are bad, a write takes at most 3
    attempts, one staging and one sifting. With keys it takes one more sifting for each key whose
    rows are left out after a failed one, if other rows conflicted with them.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        table: the table's name, taken literally.
        columns: the columns in which a row's values are stored, or a mapping from them to their
            types in a table that is created, such as `{"id": "bigint"}`; `postgres_columns` makes
            it from a schema. A json or jsonb column accepts any
            object that is representable in JSON, such as a dictionary. Text is already JSON text,
            `None` is NULL, and a codec of the connection (`set_type_codec`) takes precedence.
        schema: the table's schema; default: found by the server's search path.
        on_conflict: `"error"`: a row whose unique key exists is refused. `"ignore"`: the existing
            row stays, and the item is delivered. `"update"`: the existing row is replaced; of
            several rows with the same key in a batch, the last one takes effect.
        conflict_columns: the unique key that determines conflicts; default: any for `"ignore"`, and
            for `"update"` the primary key, or the first unique key within `columns`. It is the
            primary key of a table that is created, which `"error"` needs too if rows of an
            unknown outcome are to be found.
        create_table: `"if_missing"`: a missing table is created, when the sink is opened if
            `columns` has the types, otherwise with the types of the first values. A column whose
            first values are all `None` is added with the first other value. Not in `transaction`,
            with positions or stages, which need the types. `"never"` (the default): it must exist.
        on_new_column: the treatment of values under a name that is not in `columns`, in mappings,
            objects with declared fields and record batches. `"add"`: the value is written; a
            column that the table lacks is added first, without a default, by the type of its first
            values. Items without such a value have NULL. `"fail"`: the item fails alone.
            `"ignore"`: the value is not written, which is logged as a warning once for a name.
            `None` (the default): it is not written, and names are not checked.
        update_columns: the columns that `"update"` replaces, besides the version; default: every
            other column.
        version_column: with `"update"`, replace only rows with a lower version, or with none, so
            that an old row never overwrites a newer one. A row without a version is refused.
        changes: how an item declares that it deletes a row, or updates a part of it; needs
            `on_conflict="update"`. The key is that of the conflicts. An item that a later deletion
            in its batch undoes is not written, and counts as delivered. Not with `row`, and not
            with stages.
        row: a function from an item to its row.
        copy_threshold: the number of rows from which they are sent by `COPY`; default 50. If
            conflicts are handled, or a codec in text format prevents `COPY`, they are sent by one
            `INSERT` from arrays instead, by default from 150 rows on. Fewer rows are one `INSERT`
            with a parameter per value. Each number of rows has its own prepared statement; with
            more than 32 different numbers, the others are sent from arrays.
        staging_threshold: the number of rows from which `COPY` into a staging table replaces the
            `INSERT` from arrays; default 10,000.
        pool_size: number of connections, and therefore of concurrent writes; default 10. Of a pool
            that is lent, the number that may be used concurrently; it must have as many. A batcher
            with more workers is refused.
        ledger: the table in which `transaction` records committed units, taken literally; created
            if it is missing. It is in `schema`; without that it is found by the search path, and
            created in the table's schema. It keeps the last 100 versions of an application for each
            table; an older version is refused.
        positions: the table in which `flow.transaction` keeps the positions of its source, taken
            literally, in the schema of the ledger; created if it is missing.
        stages: the kind of tables into which Spark's `delivery="atomic"` writes first. `"logged"`
            tables (the default) survive a crash of the server; `"unlogged"` tables bypass its log,
            and a crash empties them: the write then restarts by itself.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Constructing does
    not suspend and connects to nothing. Opening suspends; it connects and reads the table. It
    raises `ConfigError` for a wrong table, column, user, password, database or certificate, naming
    the existing ones, and `UnavailableError` if no server responds.

    The table is read again before a row is blamed for an error, so an open sink writes to a table
    that was altered or recreated in the meantime.
    """

    _run_time = ("_table",)

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        table: str,
        columns: Sequence[str] | Mapping[str, str],
        schema: str | None = None,
        on_conflict: Literal["error", "ignore", "update"] = "error",
        conflict_columns: Sequence[str] | None = None,
        update_columns: Sequence[str] | None = None,
        version_column: str | None = None,
        changes: Changes | None = None,
        create_table: Literal["never", "if_missing"] = "never",
        on_new_column: Literal["ignore", "add", "fail"] | None = None,
        row: RowFunction | None = None,
        copy_threshold: int | None = None,
        staging_threshold: int | None = None,
        pool_size: int | None = None,
        ledger: str = "sluicegate_ledger",
        positions: str = "sluicegate_positions",
        stages: Literal["logged", "unlogged"] = "logged",
    ) -> None:
        key = optional_names("conflict_columns", conflict_columns)
        is_new = create_table == "if_missing" and on_conflict == "error"
        target = Target(
            table=table,
            schema=schema,
            columns=column_names(
                "columns", tuple(columns) if isinstance(columns, Mapping) else columns
            ),
            mode=on_conflict,
            conflict=None if is_new else key,
            update=optional_names("update_columns", update_columns),
            version=version_column,
            strategy=WriteStrategy.of(copy_threshold, staging_threshold),
            changes=changes,
        )
        settings = Settings(
            target=target,
            growth=GrowthSettings.of(
                target, key, columns, create_table=create_table, on_new_column=on_new_column
            ),
            access=Access.of(dsn, size=pool_size),
            row=row,
            ledger=UnitLedger(table=ledger, schema=schema),
            positions=PositionTable(table=positions, schema=schema),
            stages=stages,
        )
        need_asyncpg()
        self._settings = settings
        self._table: OpenTable | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the sink.

        - `max_concurrency`: the number of connections.
        - `idempotent`, unless a conflict is an error.
        - `repeatable`, once the sink is open, if the written columns include a unique key of the
          table: it identifies rows that an earlier attempt has stored.
        - `key_prefix_safe`, without `changes`: in a batch with keys, no row is written after a
          refused row of the same key.
        """
        known, table = self._settings.capabilities, self._table
        has_key = table is not None and (
            table.plan.key_places if is_there(table.plan) else self._settings.growth.key
        )
        return replace(known, repeatable="item") if has_key else known

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by its SQLSTATE."""
        return classify_postgres(error)

    def refused_columns(self, schema: Any) -> Mapping[str, str]:
        """The columns of a `pyarrow.Schema` that could not be written, and the reasons.

        An open sink compares them with the types of its table. With `row` every column is accepted,
        since the function decides.
        """
        if self._settings.row is not None:
            return {}
        from .rows.faults import refused_columns  # pyarrow is installed: it made the schema

        columns, changes = self._settings.target.columns, self._settings.target.changes
        if self._table is None or not is_there(plan := self._table.plan):
            found = refused_columns(schema, columns, None)
        else:
            found = refused_columns(schema, plan.columns, plan.table)
        for name in () if changes is None else changes.names:
            if name not in schema.names:
                found[name] = "is named in changes=, but is missing"
        if self._settings.growth.on_new_column == "fail":
            known = {*columns, *(() if changes is None else changes.names)}
            strange = (name for name in schema.names if name not in known)
            why = "is not among the columns of the sink; name it there, or leave it out"
            found |= dict.fromkeys(strange, why)
        return found

    @property
    def takes_json(self) -> bool:
        """Whether the JSON of a nested value of Spark is written: not with `row`, which gets the
        value.
        """
        return self._settings.row is None

    @property
    def applies_changes(self) -> str | None:
        """`"rows"` if items may delete rows, `"parts"` if they may also update a part of one."""
        changes = self._settings.target.changes
        if changes is None:
            return None
        return "rows" if changes.present_column is None else "parts"

    @property
    def replaces_by(self) -> tuple[str, ...] | None:
        """The conflict columns of an update, if known before opening; otherwise `None`."""
        target = self._settings.target
        if target.mode != "update" or self._settings.row is not None:
            return None
        if self._table is None or not is_there(self._table.plan):
            return target.conflict
        return self._table.plan.target

    def create_table_sql(self, items: Sequence[Any] = ()) -> str:
        """The statement that `create_table="if_missing"` runs, without running it.

        Args:
            items: items of which the values tell the types that `columns` does not have.

        Raises `ConfigError` if the types are not known. Does not suspend.
        """
        target, growth = self._settings.target, self._settings.growth
        writer = TableWriter(target, self._settings.access, self._settings.row, growth)
        found = dict(growth.types)
        if items and writer.growth is not None:
            batch = RowBatch(items)
            found.update(writer.growth.lacking(batch, writer.growth.nothing("")))
        if not found:
            rule = "the types are not known; give them, or items with values: columns={name: type}"
            raise bad("columns", target.columns, rule)
        return growth.creation(qualified(target.schema, target.table), found)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch` as a row, atomically.

        Suspends for one round trip or, with conflicts or bad rows, for a few.

        Returns the refused items (`PermanentError` each) and the items that an earlier attempt with
        an unknown outcome had stored (`duplicate`). If conflicts are errors, that is so only if the
        stored row has the same values; an item of a key with other values fails with
        `StoredRowDiffers`, or with `KeyRepeated` behind an item of the batch with its key. Raises `ClosedError` while the sink is not
        open; `RefusedError` if the server refuses every row until an operator repairs the cause (a
        login, a permission, a table, a column, a full disk), with nothing stored;
        `UnavailableError` if no connection can be opened or the table is locked; `TransientError`
        if the connection was lost before the rows could be stored; `UnknownOutcomeError` if it was
        lost later, or if an earlier attempt is unknown and the table has no unique key to find its
        rows; and the server's own error for any other failure that is not caused by an item.
        Cancellation cancels the statement. If the server had already received the last row, it may
        have stored the batch. The connection is reset in the background, within `close_timeout`, or
        terminated.
        """
        return await self._opened().store(batch)

    def _opened(self) -> OpenTable:
        if self._table is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._table

    @asynccontextmanager
    async def transaction(
        self, unit: Unit | PositionUnit | None
    ) -> AsyncGenerator[Transaction[Any]]:
        """A transaction on its own connection; enter it with `sluicegate.transaction(sink, unit)`,
        which describes its effects and errors.

        With a unit, the ledger has a row for it under the name of the table; entering suspends
        while another attempt of the unit is in progress, and the commit waits for the disk
        regardless of the session's settings. `UnitRefused` is also raised if the unit was committed
        to an earlier table with this name, or to this table under another name. Bad rows are
        refused as in `write`; each write is in a savepoint. Deferred constraints are checked
        immediately, and the isolation level is `READ COMMITTED`. If the response to the COMMIT is
        lost, the ledger is queried on another connection, within `close_timeout`. A refusal ends
        the transaction: leaving it raises `RefusedError`.
        """
        async with self._opened().transaction(unit) as within:
            yield within

    @property
    def _owner(self) -> PositionOwner:
        table = self._opened()
        table.check_there()
        return table.positions

    def _stages(self) -> TableStages:
        """The stages for Spark's atomic delivery; see `sluicegate._core.staging`."""
        if self._settings.target.changes is not None:
            rule = "is not for atomic delivery, whose stages hold rows; use delivery='bucket'"
            raise bad("changes", self._settings.target.changes, rule)
        table = self._opened()
        table.check_there(whole=True)
        return TableStages(table)

    def _progress(self) -> TableProgress:
        """The progress of incremental runs; see `sluicegate._core.staging`."""
        table = self._opened()
        table.check_there()
        return TableProgress(table)

    # -- opening and closing -----------------------------------------------------------------------

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        connections = await Connections.to(settings.access)
        stack.push_async_callback(connections.close)
        self._table = await OpenTable.open(settings, connections)

    def _terminate(self) -> None:
        if self._table is not None:
            self._table.connections.terminate()

    def __repr__(self) -> str:
        return repr(self._settings)
