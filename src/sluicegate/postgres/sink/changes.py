"""Items that declare their change to the table: insert, update or delete a row, or update a part of
it.

1. A batch has the effect of its items one by one, in order. Its deletions run first: an upsert
   before the last deletion of its key is left out, and counts as delivered. With a version column,
   an upsert with a higher version than the deletion stays, and one with a lower version is left
   out, even after the deletion; a stored row with a higher version stays as well. A deleted row
   leaves no version behind: a late item of a later batch creates it again.
2. Keys are compared as Python compares them, so `a` and `A` are two, whatever the collation.
3. An item with a list of *present* columns updates these and its version. The columns that are
   absent keep their values; a value that is present and `None` is NULL. If there is no row, one is
   inserted, with the table's defaults for what is absent. Items with the same list are written
   together; items of one key are in rounds, each with one of them.
4. All of it is one transaction, or a savepoint of a larger one. A batch without deletions and lists
   is written like any other.
5. Items are not written in their order, so a failed item does not stop the later ones of a key of
   the batch: the sink is not `key_prefix_safe`.
6. A statement for many rows that fails because of one is repeated row by row, each in a savepoint.
"""

# ruff: noqa: S608  # text is put into statements here and nowhere else: names by `quoted`, types as the server spelled them

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ..._core.arrow import ArrowBatch, values_of
from ..._core.checks import bad
from ..._core.errors import PermanentError
from ..._core.values.rows import RowMaker, check_name, value_of
from ..client.errors import is_about_items, is_lost
from ..client.names import quoted
from .plan import EXACT, LOOSE, SCHEMA, VERDICT
from .remaining import Remaining

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.values.rows import GivenRows
    from .plan import TablePlan

_UPSERTS = ("c", "r", "u", "i", "insert", "update", "upsert")
_DELETES = ("d", "delete")
"""The operations, with those of Debezium."""
POINT, ROW_POINT = "sluicegate_change", "sluicegate_changed_row"
DROP_STAGING = (
    f"DROP TABLE IF EXISTS {', '.join(f'{SCHEMA}.{each}' for each in (EXACT, LOOSE, VERDICT))}"
)
"""Staging tables have the columns of one plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """How an item declares its change to the table, for `PostgresSink(changes=)`.

    Args:
        op_column: the name of the operation in an item: `c`, `r`, `u`, `i`, `insert`, `update` or
            `upsert` insert or replace the row, `d` or `delete` delete the row of the key, without
            regard to case. A deletion needs no other values than the key, and the version if there
            is a `version_column`. Without a name (`None`), every item is an upsert.
        present_column: the name of a list in an item, of the columns that the item has: an existing
            row keeps the others. Columns of the key are always present. Without a list (`None`) all
            are.

    Neither name is a column of the table unless the sink's `columns` has it. An item with another
    operation, or with a name in its list that is not a column, fails alone. Raises `ConfigError`
    for a bad argument.
    """

    op_column: str | None = None
    present_column: str | None = None

    def __post_init__(self) -> None:
        if self.op_column is None and self.present_column is None:
            raise bad("op_column", None, "is needed, or present_column")
        for name in ("op_column", "present_column"):
            if (value := getattr(self, name)) is not None:
                check_name(name, value)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are not columns."""
        return tuple(name for name in (self.op_column, self.present_column) if name is not None)


@dataclass(slots=True)
class Steps:
    """The items of one batch, in the order in which they are written."""

    errors: dict[int, Exception] = field(default_factory=dict[int, Exception])
    deletions: list[int] = field(default_factory=list[int])
    upserts: list[tuple[tuple[str, ...], list[int]]] = field(
        default_factory=list[tuple[tuple[str, ...], list[int]]]
    )
    """The columns that are written, and the indices of the items."""


def steps_of(changes: Changes, batch: Batch[Any], plan: TablePlan) -> Steps:
    """Divide a batch. Does no I/O."""
    steps, count = Steps(), len(batch)
    lists = _values(batch, changes.present_column)
    ops = [False] * count
    if changes.op_column is not None:
        for index, given in enumerate(_values(batch, changes.op_column)):
            op = given.lower() if isinstance(given, str) else None
            ops[index] = op in _DELETES
            if op not in (*_UPSERTS, *_DELETES):
                known = ", ".join((*_UPSERTS, *_DELETES))
                why = f"the item's {changes.op_column!r} is no operation; known: {known}"
                steps.errors[index] = PermanentError(why)
    if not any(ops) and not any(each is not None for each in lists):
        left = [index for index in range(count) if index not in steps.errors]
        steps.upserts.append((plan.columns, left))
        return steps
    present = [_present(changes, plan, each, index, steps) for index, each in enumerate(lists)]
    keys = _keys(batch, plan)
    versions = _values(batch, plan.version)
    last: dict[Any, int] = {}  # of each key, the deletion that counts
    for index in range(count):
        if ops[index] and index not in steps.errors:
            steps.deletions.append(index)
            before = last.get(keys[index])
            if before is None or not _is_lower(versions[index], versions[before]):
                last[keys[index]] = index
    rounds: dict[Any, int] = {}
    groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    has_parts = any(names != plan.columns for names in present)
    for index in range(count):
        if ops[index] or index in steps.errors:
            continue
        deletion = last.get(keys[index])
        if deletion is not None and _is_undone(index, deletion, versions):
            continue
        number = rounds.get(keys[index], -1) + 1 if has_parts else 0
        rounds[keys[index]] = number
        groups.setdefault((number, present[index]), []).append(index)
    for (_, names), indices in sorted(groups.items(), key=lambda each: each[0][0]):
        steps.upserts.append((names, indices))
    return steps


def _values(batch: Batch[Any], name: str | None) -> list[Any]:
    if name is None:
        return [None] * len(batch)
    if isinstance(batch, ArrowBatch):
        record = batch.record_batch
        has_it = name in record.schema.names
        return values_of(record.column(name))[0] if has_it else [None] * len(batch)
    return [value_of(item, name) for item in batch]


def _keys(batch: Batch[Any], plan: TablePlan) -> list[Any]:
    """The key of each item; one that contains NULL is its own."""
    keys: list[Any] = []
    for index, key in enumerate(
        zip(*(_values(batch, name) for name in plan.target or ()), strict=True)
    ):
        try:
            hash(key)
        except TypeError:
            keys.append(repr(key))
        else:
            keys.append(index if None in key else key)
    return keys


def _present(
    changes: Changes, plan: TablePlan, given: Any, index: int, steps: Steps
) -> tuple[str, ...]:
    """The columns that an item has, in the order of the plan."""
    if given is None:
        return plan.columns
    names = cast("Sequence[Any]", given) if isinstance(given, (list, tuple)) else None
    if names is None or not set(plan.columns).issuperset(names):
        steps.errors[index] = PermanentError(
            f"the item's {changes.present_column!r} must be a list of columns of the sink"
        )
        return plan.columns
    always = {*names, *(plan.target or ()), *([plan.version] if plan.version else [])}
    return tuple(name for name in plan.columns if name in always)


def _is_lower(one: Any, other: Any) -> bool:
    return one is not None and other is not None and one < other


def _is_undone(index: int, deletion: int, versions: Sequence[Any]) -> bool:
    """Whether an upsert has no effect, since a deletion of its key follows it or is newer."""
    if index < deletion:
        return not _is_lower(versions[deletion], versions[index])
    return _is_lower(versions[index], versions[deletion])


def part_of(plan: TablePlan, names: tuple[str, ...]) -> TablePlan:
    """The plan that writes only these columns."""
    return replace(
        plan,
        columns=names,
        update_columns=tuple(name for name in plan.update_columns if name in names),
        uncopied=tuple(name for name in plan.uncopied if name in names),
    )


def lacking(part: TablePlan) -> list[str]:
    """The columns without which the table takes no new row."""
    return [
        column.name
        for column in part.table.columns
        if column.not_null
        and column.name not in part.columns
        and not (column.has_default or column.generated)
    ]


def no_row(columns: Sequence[str]) -> PermanentError:
    """The error of an item that cannot insert a row."""
    names = ", ".join(map(repr, columns))
    return PermanentError(f"there is no row of its key, and a new one needs a value for {names}")


def rows_of(batch: Batch[Any], indices: Sequence[int], plan: TablePlan) -> GivenRows:
    """The rows of some items for a plan of a part of the columns."""
    part = batch.pick(indices)
    if isinstance(part, ArrowBatch) and plan.copies and plan.reads_text:
        from .rows.columns import column_rows  # pyarrow is installed: it made the batch

        columns = [plan.table.column(name) for name in plan.columns]
        if (found := column_rows(part.record_batch, columns)) is not None:
            return indices, found, {}
    places, rows, errors = RowMaker(plan.columns, None).rows(part)
    by_index = {indices[place]: error for place, error in errors.items()}
    return [indices[place] for place in places], rows, by_index


async def delete(
    con: PoolConnectionProxy[Any], plan: TablePlan, batch: Batch[Any], indices: Sequence[int]
) -> dict[int, Exception]:
    """Delete the rows of these items, in the open transaction; return the errors by index."""
    names = (*(plan.target or ()), *([plan.version] if plan.version else ()))
    part = part_of(plan, tuple(name for name in plan.columns if name in names))
    remaining = Remaining(rows_of(batch, indices, part), maybe=frozenset())
    _prepare(remaining, part)
    remaining.drop(
        {
            place: PermanentError("the key of a row to be deleted contains NULL")
            for place, row in enumerate(remaining.rows)
            if any(row[each] is None for each in part.key_places)
        }
    )
    guard = ""
    if part.version is not None:
        version, (given,) = f"t.{quoted(part.version)}", part.staged((part.version,))
        guard = f" AND ({version} IS NULL OR {version} <= s.{given})"

    def statement(source: str) -> str:
        same = _same_key(part)
        return f"DELETE FROM {plan.table.qualified} t USING {source} s WHERE {same}{guard}"

    await _run(con, part, remaining, statement)
    return remaining.errors


async def update(
    con: PoolConnectionProxy[Any], plan: TablePlan, given: GivenRows
) -> tuple[list[int], dict[int, Exception]]:
    """Update the columns of a part's plan in existing rows; each key occurs once.

    Returns the indices of the rows that do not exist, and the errors by index.
    """
    remaining = Remaining(given, maybe=frozenset())
    _prepare(remaining, plan)
    sets = ", ".join(
        f"{quoted(name)} = s.{place}"
        for name, place in zip(plan.update_columns, plan.staged(plan.update_columns), strict=True)
    )
    guard = ""
    if plan.version is not None:
        version, (place,) = f"t.{quoted(plan.version)}", plan.staged((plan.version,))
        guard = f" AND ({version} IS NULL OR {version} < s.{place})"
    table, same = plan.table.qualified, _same_key(plan)

    def statement(source: str) -> str:
        changed = f", changed AS (UPDATE {table} t SET {sets} FROM s WHERE {same}{guard})"
        return (
            f"WITH s AS MATERIALIZED (SELECT * FROM {source} given){changed if sets else ''} "
            f"SELECT o FROM s WHERE NOT EXISTS (SELECT FROM {table} t WHERE {same})"
        )

    missing = await _run(con, plan, remaining, statement)
    return missing, remaining.errors


def _prepare(remaining: Remaining, plan: TablePlan) -> None:
    remaining.drop_unversioned(plan)
    remaining.as_tuples(plan)
    remaining.drop_changed(plan)


async def _run(
    con: PoolConnectionProxy[Any],
    plan: TablePlan,
    remaining: Remaining,
    statement: Callable[[str], str],
) -> list[int]:
    """Run a statement for all rows, or for one after another; return the indices that it returns."""
    rows, indices = remaining.rows, [*remaining.indices]
    source = _arrays(plan)
    if rows and source is not None:
        try:
            await con.execute(f"SAVEPOINT {ROW_POINT}")
            found = await con.fetch(statement(source), *map(list, zip(*rows, strict=True)))
            return [indices[row["o"] - 1] for row in found]
        except Exception as error:
            if is_lost(error) or not is_about_items(error):
                raise
            await con.execute(f"ROLLBACK TO SAVEPOINT {ROW_POINT}")
    one = _values_clause(plan)
    returned: list[int] = []
    for place, row in enumerate(rows):
        await con.execute(f"SAVEPOINT {ROW_POINT}")
        try:
            if await con.fetch(statement(one), *row):
                returned.append(indices[place])
        except Exception as error:
            if is_lost(error) or not is_about_items(error):
                raise
            await con.execute(f"ROLLBACK TO SAVEPOINT {ROW_POINT}")
            remaining.refuse(place, error)
        await con.execute(f"RELEASE SAVEPOINT {ROW_POINT}")
    return returned


def _arrays(plan: TablePlan) -> str | None:
    """Rows from an array per column; `None` if `unnest` would split the values."""
    found = [plan.table.column(name) for name in plan.columns]
    if any(column.is_nested for column in found):
        return None
    arrays = ", ".join(f"${place}::{column.given}[]" for place, column in enumerate(found, 1))
    return _typed(plan, f"unnest({arrays}) WITH ORDINALITY AS given({plan.all_staged}, o)")


def _values_clause(plan: TablePlan) -> str:
    found = enumerate((plan.table.column(name) for name in plan.columns), 1)
    row = ", ".join(f"${place}::{column.given}" for place, column in found)
    return _typed(plan, f"(VALUES ({row}, 1)) AS given({plan.all_staged}, o)")


def _typed(plan: TablePlan, rows: str) -> str:
    """The rows in their columns' types; `k0`, ... are the values of the key as the table has them."""
    found = enumerate(plan.table.column(name) for name in plan.columns)
    values: Iterable[str] = (f"{column.typed(f'c{place}')} AS c{place}" for place, column in found)
    keys = (f"{plan.compared(name)} AS k{place}" for place, name in enumerate(plan.key or ()))
    return f"(SELECT *, {', '.join(keys)} FROM (SELECT o, {', '.join(values)} FROM {rows}) typed)"


def _same_key(plan: TablePlan) -> str:
    return " AND ".join(
        plan.table.column(name).equal(f"t.{quoted(name)}", f"s.k{place}")
        for place, name in enumerate(plan.key or ())
    )
