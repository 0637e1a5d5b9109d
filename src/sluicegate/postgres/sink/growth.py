"""Creates the table of a sink, and adds columns to it.

1. The names of an item are the keys of a mapping, the fields of an object with declared ones, or
   the columns of a record batch. A name is *new* if it is neither in `columns` nor was taken up
   before. Rows (tuples, lists, those of `row`) have values for `columns` only.
2. A write begins with a plan that has a column for each value, so that no way of writing and no
   repair knows that tables grow. A column of `columns` that is not in the table is *pending* until
   a value for it is seen: its NULLs are not sent.
3. The table is read before it is changed, and again if another session was faster. So exactly one
   of several sinks creates a table or a column, and the others take it up. No column is altered: a
   value that does not fit into it fails its row.
4. A change has its own transaction, and waits at most `LOCK_WITHIN` for its lock, since every later
   statement of others waits behind it. In a transaction of the user it is a part of that one: on
   another connection it would wait for the rows that this transaction has written. Its savepoint is
   before that of the write, whose rollback keeps the column.
5. A name that cannot become a column is at fault itself: its items fail alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from ..._core import checks
from ..._core.arrow import ArrowBatch
from ..._core.batch import RowBatch
from ..._core.checks import bad
from ..._core.errors import (
    ConfigError,
    ErrorClass,
    PermanentError,
    RefusedError,
    SluicegateError,
    TransientError,
)
from ..._core.values.rows import RowMaker, check_name, names_of, value_of
from ..client.errors import (
    NO_PRIVILEGE,
    classify_postgres,
    for_write,
    is_gone,
    is_refusal,
    is_stale,
    sqlstate,
)
from ..client.names import LONGEST, quoted
from ..client.refusals import refusal
from ..client.statements import BEGIN
from .column_types import check_types, type_of
from .encoding import by_codecs
from .plan import TablePlan
from .scope import ALONE
from .table import Table, check_columns, find_table, missing_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.values.rows import GivenRows, RowFunction
    from ..client.statements import Statements
    from .diagnosis import Diagnosis
    from .scope import Scope
    from .strategy import Target

logger = logging.getLogger("sluicegate.postgres")

LOCK_WITHIN = "2s"
"""How long a change of the table waits for its lock."""
TRIES = 10
"""How often the table is read again because other sessions have changed it meanwhile."""
MOST_TOLD = 100
"""Number of ignored names that are logged."""
_TOO_MANY = "54011"
_NO_TABLE = "42809"
_THERE = frozenset({"23505", "42P07", "42710", "42701"})
"""A table, its type or a column exists, or another session is creating it."""
_LOCKED = frozenset({"55P03", "40P01"})
_SYSTEM = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_SAVED = "sluicegate.lock_timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthSettings:
    """Whether a sink creates its table, and the treatment of new names. Raises `ConfigError`."""

    create_table: str
    on_new_column: str | None
    types: Mapping[str, str]
    """The types of the columns; empty if they are not known."""
    key: tuple[str, ...]
    """The primary key of a table that is created."""

    @classmethod
    def of(
        cls, target: Target, key: tuple[str, ...] | None, columns: object, **choices: Any
    ) -> GrowthSettings:
        """Check the arguments. `key` are the columns that determine conflicts."""
        types = cast("Any", columns) if isinstance(columns, Mapping) else dict[str, str]()
        made = cls(types=check_types(types), key=key or (), **choices)
        made._check(target)
        return made

    def _check(self, target: Target) -> None:
        checks.choice("create_table", self.create_table, ("never", "if_missing"))
        if self.on_new_column is not None:
            checks.choice("on_new_column", self.on_new_column, ("ignore", "add", "fail"))
        if not self.creates:
            return
        for name in self.key:
            if name not in target.columns:
                raise bad("conflict_columns", self.key, f"must be among columns={target.columns!r}")
        if target.mode != "error" and not self.key:
            rule = "is needed with create_table: it is the primary key of the table"
            raise bad("conflict_columns", None, rule)
        for name in target.columns:
            if (fault := _fault_of(name)) is not None:
                raise bad("columns", name, fault)

    @property
    def creates(self) -> bool:
        """Whether a missing table is created."""
        return self.create_table == "if_missing"

    @property
    def adds(self) -> bool:
        """Whether new names become columns."""
        return self.on_new_column == "add"

    @property
    def is_active(self) -> bool:
        """Whether items or the table are looked at before a write."""
        return self.creates or self.on_new_column is not None

    def creation(self, path: str, columns: Mapping[str, str]) -> str:
        """The statement that creates the table."""
        parts = [f"{quoted(name)} {kind}" for name, kind in columns.items()]
        if self.key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted, self.key))})")
        return f"CREATE TABLE {path} ({', '.join(parts)})"

    def change(self, plan: TablePlan, table: Table | None, new: Mapping[str, str]) -> str:
        """The statement that creates a missing table, or columns of it."""
        if table is None:
            return self.creation(plan.table.qualified, new)
        added = (f"ADD COLUMN {quoted(name)} {kind}" for name, kind in new.items())
        return f"ALTER TABLE {table.qualified} {', '.join(added)}"


class Growth:
    """The rows of the items of one open sink, and the columns that they need."""

    def __init__(
        self,
        settings: GrowthSettings,
        target: Target,
        row: RowFunction | None,
        diagnosis: Diagnosis,
        *,
        reads_text: bool,
    ) -> None:
        self._settings = settings
        self._target = target
        self._row = row
        self._diagnosis = diagnosis
        self._reads_text = reads_text
        self._needed = {*settings.key, *([target.version] if target.version else ())}
        self._faults: dict[str, str] = {}
        """Names that the table cannot take, and why."""
        self._told: set[str] = set()

    # -- items -------------------------------------------------------------------------------------

    def rows_of(self, batch: Batch[Any], plan: TablePlan) -> GivenRows:
        """The rows of a batch with values for the plan's columns."""
        columns = self._target.columns
        taken = tuple(name for name in plan.columns if name not in columns)
        indices, rows, errors = RowMaker(columns, self._row, optional=taken).rows(batch)
        if not is_there(plan):
            errors = {**errors, **dict.fromkeys(indices, self._untyped())}
            return (), (), errors
        if len(plan.columns) < len(columns) + len(taken):
            kept = [place for place, name in enumerate(columns) if name in plan.columns]
            kept += range(len(columns), len(columns) + len(taken))
            rows = [tuple(row[place] for place in kept) for row in rows]
        return indices, rows, errors

    def _untyped(self) -> PermanentError:
        names = ", ".join(map(repr, sorted(self._needed) or self._target.columns))
        return PermanentError(
            f"the table is missing, and the items have no value for {names} from which a type "
            "follows; give the types in columns="
        )

    def refused(self, batch: Batch[Any], plan: TablePlan) -> dict[int, Exception]:
        """The errors, by index, of items with a new name that cannot be left out."""
        strange = [*self._strange(batch, plan)]
        if not strange:
            return {}
        if self._settings.on_new_column == "ignore":
            self._tell(strange)
            return {}
        found: dict[int, Exception] = {}
        for name in strange:
            for index, item in _items_of(batch):
                is_held = name in names_of(item)
                if is_held and not (self._settings.adds and _value_of(item, name) is None):
                    found.setdefault(index, self._refusal_of(name))
        return found

    def _refusal_of(self, name: Any) -> PermanentError:
        why = self._faults.get(name, "is not among the columns of the sink")
        if self._settings.adds:
            why = _fault_of(name) or self._faults.get(name) or "has a value without a column type"
        return PermanentError(f"the item has a new column {checks.shown(name)}, which {why}")

    def _tell(self, strange: Sequence[Any]) -> None:
        for name in strange:
            if name not in self._told and len(self._told) < MOST_TOLD:
                self._told.add(name)
                logger.warning(
                    "items for table %s have a value %s, for which the sink has no column: it is "
                    "ignored. This is logged once for a name",
                    self._target.shown,
                    checks.shown(name),
                )

    def _strange(self, batch: Batch[Any], plan: TablePlan) -> Iterator[Any]:
        known = {*self._target.columns, *plan.columns}
        if self._target.changes is not None:
            known.update(self._target.changes.names)
        if self._row is not None or self._settings.on_new_column is None:
            return
        if isinstance(batch, ArrowBatch):
            names: Collection[Any] = batch.record_batch.schema.names
        else:
            items: Any = batch.items if isinstance(batch, RowBatch) else batch
            is_plain = {dict}.issuperset(map(type, items))
            names = dict.fromkeys(chain.from_iterable(items if is_plain else map(names_of, items)))
        yield from (name for name in names if name not in known)

    def lacking(self, batch: Batch[Any], plan: TablePlan) -> dict[str, str]:
        """The columns that the plan lacks for the values of a batch, and their types."""
        names = [name for name in self._target.columns if name not in plan.columns]
        found: dict[str, str | None] = {}
        if names and (isinstance(batch, ArrowBatch) and self._row is None):
            found = {name: _type_in(batch, name) for name in names}
        elif names:
            _, rows, _ = RowMaker(self._target.columns, self._row).rows(batch)
            for name in names:
                place = self._target.columns.index(name)
                found[name] = type_of(row[place] for row in rows)
        if self._settings.adds:
            for name in self._strange(batch, plan):
                if name not in self._faults and _fault_of(name) is None:
                    found[name] = _type_in(batch, name)
        found.update((name, kind) for name, kind in self._settings.types.items() if name in found)
        typed = {name: kind for name, kind in found.items() if kind is not None}
        return typed if is_there(plan) or self._needed <= typed.keys() else {}

    # -- the table ---------------------------------------------------------------------------------

    def nothing(self, schema: str) -> TablePlan:
        """The plan for a table that does not exist yet."""
        table = Table(self._target.table, schema, (), ())
        return TablePlan(
            table=table,
            columns=(),
            mode=self._target.mode,
            target=None,
            key=None,
            update_columns=(),
            version=None,
            reads_text=self._reads_text,
        )

    async def open(self, con: PoolConnectionProxy[Any], statements: Statements) -> TablePlan:
        """The plan at the opening; creates the table if the types are known.

        Raises `ConfigError` for a table that does not fit, or that the role may not create.
        """
        settings, target = self._settings, self._target
        async with statements.block(con):
            table = await find_table(con, target.table, target.schema)
            if table is None and not settings.creates:
                raise await missing_table(con, target.table, target.schema)
            home = target.schema or await con.fetchval("SELECT pg_catalog.current_schema()")
            if home is None:
                raise bad("schema", None, "the search path names no schema; pass schema=")
            plan = self.nothing(home)
            new: Mapping[str, str] = settings.types
            if table is not None:
                there = {column.name for column in table.columns}
                waits = settings.adds or (settings.creates and not settings.types)
                missing = [name for name in target.columns if name not in there]
                check_columns(
                    table, [name for name in target.columns if not (waits and name in missing)]
                )
                plan = await self._plan_for(con, plan, table, ())
                new = {name: kind for name, kind in new.items() if name in missing}
        try:
            return await self.fit(con, plan, new, ALONE) if new else plan
        except RefusedError as error:
            raise ConfigError(str(error)) from error

    async def fit(
        self,
        con: PoolConnectionProxy[Any],
        plan: TablePlan,
        lacking: Mapping[str, str],
        scope: Scope,
    ) -> TablePlan:
        """The plan with the columns that it lacks; creates what the table lacks.

        Inside a transaction of the user, it runs after a savepoint. Suspends. Raises
        `UnavailableError` if the table is locked, and `RefusedError` if the role may not change it.
        """
        begin, end = _ends(scope)
        for left in reversed(range(TRIES)):
            change, new = "", list[str]()
            try:
                await con.execute(begin)
                table = await find_table(con, plan.table.name, plan.table.schema)
                new = self._new(plan, table, lacking)
                made = None
                if new:
                    change = self._settings.change(
                        plan, table, {name: lacking[name] for name in new}
                    )
                    await con.execute(change)
                elif table is None:  # it was dropped
                    raise await missing_table(con, plan.table.name, plan.table.schema)
                else:
                    made = await self._plan_for(con, plan, table, lacking)
                await con.execute(end)
            except Exception as error:
                if is_gone(con) or (
                    sqlstate(error) is None and not isinstance(error, SluicegateError)
                ):
                    raise for_write(error, sealed=False)  # noqa: B904  # the cause is set
                await scope.undo(con)
                if sqlstate(error) == _TOO_MANY and is_there(plan):
                    self._faults.update(dict.fromkeys(new, "the table has no room for"))
                elif is_stale(error) and left:
                    await con.reload_schema_state()
                elif sqlstate(error) not in _THERE or not left:
                    role = await _role(con, begin, scope)
                    raise self._error_of(plan, change, error, role)  # noqa: B904  # it has its cause
            else:
                if made is not None:
                    return made
                logger.info("the sink has changed its table: %s", change)
        raise TransientError(f"table {plan.table.qualified} is changed by others all the time")

    def _new(self, plan: TablePlan, table: Table | None, lacking: Mapping[str, str]) -> list[str]:
        """The names of the columns to create; none if the table has them, or was dropped."""
        if table is None:
            return [] if is_there(plan) else list(lacking)
        columns = {column.name: column for column in table.columns}
        for name in lacking:
            if name in columns and columns[name].generated:
                self._faults[name] = "the server computes"
            elif name in columns and columns[name].has_default and name not in self._target.columns:
                # items without a value would have NULL
                self._faults[name] = "has a default in the table: name it in columns="
        return [name for name in lacking if name not in columns and name not in self._faults]

    async def _plan_for(
        self,
        con: PoolConnectionProxy[Any],
        plan: TablePlan,
        table: Table,
        wanted: Iterable[str],
    ) -> TablePlan:
        there = {column.name for column in table.columns}
        named = [name for name in self._target.columns if name in there]
        taken = [
            name for name in (*plan.columns, *wanted) if name in there and name not in self._faults
        ]
        columns = tuple(dict.fromkeys((*named, *taken)))
        made = self._target.plan(table, reads_text=plan.reads_text, columns=columns)
        return await by_codecs(con, replace(made, json_types=plan.json_types))

    def _error_of(self, plan: TablePlan, change: str, error: Exception, role: str) -> Exception:
        """The error of the write, after a change that failed."""
        state, place = sqlstate(error), self._diagnosis.place
        if state in _LOCKED:
            return self._diagnosis.locked(error, plan)
        what = f"PostgreSQL at {place} refuses to change table {plan.table.qualified}"
        if isinstance(error, ConfigError):
            return refusal(error, what, f"change the table or the sink ({error})")
        if not (is_refusal(error) or classify_postgres(error) is ErrorClass.PERMANENT):
            return for_write(error, sealed=False)
        repair = f"let the owner of table {plan.table.qualified} at {place} run: {change}"
        if state == _NO_TABLE:  # but a view, or a part of another table
            repair = f"give table {plan.table.qualified} at {place} what this cannot: {change}"
        if state == NO_PRIVILEGE and not is_there(plan):
            home = quoted(plan.table.schema)
            repair = f"grant CREATE on schema {home} at {place} to role {role}"
        return refusal(error, what, repair)


def is_there(plan: TablePlan) -> bool:
    """Whether the table of a plan exists."""
    return bool(plan.table.columns)


def _items_of(batch: Batch[Any]) -> Iterator[tuple[int, Any]]:
    """The items of a batch by index; those of columns without rows that have no Python object."""
    if isinstance(batch, ArrowBatch):
        places = (place for place in range(len(batch)) if place not in batch.unreadable())
        return ((place, batch.shown(place)) for place in places)
    return enumerate(batch)


def _value_of(item: Any, name: Any) -> Any:
    """The value under a name; an error if there is one, which has no column type."""
    try:
        return value_of(item, name)
    except Exception as error:
        return error


def _type_in(batch: Batch[Any], name: str) -> str | None:
    """The column type for the values of a name in a batch."""
    if isinstance(batch, ArrowBatch):
        record = batch.record_batch
        if name not in record.schema.names or record.column(name).null_count == len(batch):
            return None
    return type_of(_value_of(item, name) for _, item in _items_of(batch) if name in names_of(item))


def _fault_of(name: Any) -> str | None:
    """Why no column can have this name."""
    try:
        check_name("name", name)
        size = len(name.encode())
    except (ConfigError, UnicodeEncodeError):
        return "is no name of a column"
    if not name.isprintable():  # it would be in the log
        return "has characters that are not printable"
    if size > LONGEST:
        return f"is longer than the {LONGEST} bytes of a name in PostgreSQL"
    return "is a system column of PostgreSQL" if name in _SYSTEM else None


def _ends(scope: Scope) -> tuple[str, str]:
    """The statements around a change, with the limit of its wait."""
    limit = f"SET LOCAL lock_timeout = '{LOCK_WITHIN}'"
    if not scope.is_inside:
        return f"{BEGIN}; {limit}", "COMMIT"
    save = f"SELECT set_config('{_SAVED}', current_setting('lock_timeout'), true)"
    restore = f"SELECT set_config('lock_timeout', current_setting('{_SAVED}'), true)"
    return f"{save}; {limit}", restore


async def _role(con: PoolConnectionProxy[Any], begin: str, scope: Scope) -> str:
    await con.execute(begin)
    found = await con.fetchval("SELECT pg_catalog.quote_ident(current_user)")
    await scope.undo(con)
    return str(found)
