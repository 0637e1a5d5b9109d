"""Rows created from items, the table that they go to, and conflicts of their keys.

An item that cannot become a row fails alone. Tuples and lists of the right length are already rows:
a batch of only these costs one pass in C and no copy. A batch of dictionaries also costs one pass
in C.

If the key of an item is taken after an attempt with an unknown outcome:

1. The first item of a key with the contents of the stored row is a duplicate: an earlier attempt
   has stored it, or another writer has stored the same.
2. Any other item is refused for good if an earlier item of the batch with its key is stored, or may
   be: no attempt can have stored both.
3. Otherwise the outcome stays unknown: another writer may hold the key, or a trigger or a later
   writer may have changed the item's row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .. import checks
from ..batch import RowBatch
from ..checks import bad
from ..errors import KeyRepeated, PermanentError, StoredRowDiffers
from .encoding import field_names, item_error

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from ..batch import Batch


Row: TypeAlias = Sequence[Any]
RowFunction = Callable[[Any], Row]
"""Returns the row of an item: a value for each column."""
GivenRows: TypeAlias = tuple[Sequence[int], Sequence[Row], dict[int, Exception]]
"""The indices that have a row, their rows, and an error for each other index."""
_PLAIN = frozenset({tuple, list})
_DICT = frozenset({dict})

MODES = ("error", "ignore", "update")

NULL_KEY = (
    "an earlier attempt may have stored this row, and its key contains NULL, so that it cannot be "
    "looked up"
)


def names_of(item: Any) -> Collection[Any]:
    """The names of an item's values; none if it is a row, or has no declared fields."""
    if isinstance(item, Mapping):
        return cast("Mapping[Any, Any]", item).keys()
    kind = cast("Any", type(item))
    fields = getattr(kind, "model_fields", None)
    if isinstance(fields, Mapping):
        return (*cast("Mapping[str, Any]", fields), *(getattr(item, "model_extra", None) or ()))
    return field_names(kind) or ()


def value_of(item: Any, name: Any) -> Any:
    """The value of an item under one of its names; `None` for other names, such as of methods."""
    if isinstance(item, Mapping):
        return cast("Mapping[Any, Any]", item).get(name)
    if name not in names_of(item):
        return None
    extra = getattr(item, "model_extra", None)
    if isinstance(extra, Mapping) and name in extra:
        return cast("Mapping[Any, Any]", extra)[name]
    return getattr(item, name, None)


class RowMaker:
    """Creates a row from each item: with `row`, if given, or by position, name or attribute.

    A row ends with the values of the `optional` columns; `None` if the item has none. Tuples, lists
    and the rows of `row` never have any.
    """

    def __init__(
        self,
        columns: tuple[str, ...],
        row: RowFunction | None,
        *,
        optional: tuple[str, ...] = (),
    ) -> None:
        self._columns = columns
        self._optional = optional
        self._row = row
        getter = attrgetter(*columns) if all("." not in column for column in columns) else None
        self._attributes: Callable[[Any], Any] | None = getter
        # with one column it would not return a tuple
        self._of_dict = itemgetter(*columns) if len(columns) > 1 else None

    def rows(self, batch: Batch[Any]) -> GivenRows:
        """Create rows; each index has a row or an error. Does not suspend."""
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        rows = self._all_at_once(items)
        if rows is None:
            return self._with_optional(items, self._one_by_one(items))
        return self._with_optional(items, (range(len(items)), rows, {}))

    def _with_optional(self, items: Sequence[Any], given: GivenRows) -> GivenRows:
        if not self._optional:
            return given
        kept: list[int] = []
        made: list[Row] = []
        errors = dict(given[2])
        for index, row in zip(*given[:2], strict=True):
            try:
                more = self._optional_of(items[index])
            except Exception as error:
                errors[index] = item_error("cannot become a row", error)
            else:
                kept.append(index)
                made.append((*row, *more))
        return kept, made, errors

    def _optional_of(self, item: Any) -> list[Any]:
        if isinstance(item, Mapping):
            return list(map(cast("Mapping[str, Any]", item).get, self._optional))
        if self._row is not None:
            return [None] * len(self._optional)
        return [value_of(item, name) for name in self._optional]

    def _all_at_once(self, items: Sequence[Any]) -> Sequence[Row] | None:
        """Return all rows if all are plain and of the right length; without Python code per row."""
        rows: Sequence[Any] = items
        if self._row is not None:
            try:
                rows = list(map(self._row, items))
            except Exception:  # an item is invalid: the slow path finds it
                return None
        elif self._of_dict is not None and _DICT.issuperset(map(type, items)):
            try:
                return list(map(self._of_dict, items))
            except KeyError:
                return None
        return (
            rows
            if _PLAIN.issuperset(map(type, rows)) and set(map(len, rows)) == {len(self._columns)}
            else None
        )

    def _one_by_one(self, items: Sequence[Any]) -> GivenRows:
        indices: list[int] = []
        rows: list[Row] = []
        errors: dict[int, Exception] = {}
        for index, item in enumerate(items):
            try:
                row = self._checked(self._row_of(item) if self._row is None else self._row(item))
            except PermanentError as error:
                errors[index] = error
            except Exception as error:
                errors[index] = item_error("cannot become a row", error)
            else:
                indices.append(index)
                rows.append(row)
        return indices, rows, errors

    def _row_of(self, item: Any) -> object:
        if isinstance(item, (tuple, list)):
            return cast("Row", item)
        if isinstance(item, Mapping):
            named = cast("Mapping[str, Any]", item)
            self._check_fields([column for column in self._columns if column not in named])
            return [named[column] for column in self._columns]
        if self._attributes is None or isinstance(item, (str, bytes, type(None))):
            raise self._no_row(f"it is a {type(item).__name__}, and no mapping or sequence")
        self._check_fields([column for column in self._columns if not hasattr(item, column)])
        found = self._attributes(item)
        return found if len(self._columns) > 1 else (found,)

    def _check_fields(self, missing: Sequence[str]) -> None:
        if missing:
            raise self._no_row(f"it has no {', '.join(map(repr, missing))}")

    def _checked(self, row: object) -> Row:
        if isinstance(row, (str, bytes)) or not isinstance(row, Sequence):
            raise self._no_row(f"row= returned a {type(row).__name__}, and no sequence")
        found = cast("Row", row)
        if len(found) != len(self._columns):
            given = "it has" if self._row is None else "row= returned"
            raise self._no_row(f"{given} {len(found)} values for {len(self._columns)} columns")
        return found

    @staticmethod
    def _no_row(fault: str) -> PermanentError:
        """The error of an item, in words without its values, which may be logged."""
        return PermanentError(f"the item cannot become a row: {fault}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTarget:
    """A table, its columns, and the treatment of conflicts. Raises `ConfigError`."""

    table: str
    schema: str | None
    columns: tuple[str, ...]
    mode: str
    """`error`, `ignore` or `update`."""
    conflict: tuple[str, ...] | None
    update: tuple[str, ...] | None
    version: str | None

    def __post_init__(self) -> None:
        check_name("table", self.table)
        if self.schema is not None:
            check_name("schema", self.schema)
        checks.choice("on_conflict", self.mode, MODES)
        if self.mode == "error" and self.conflict is not None:
            raise bad("conflict_columns", self.conflict, 'needs on_conflict="ignore" or "update"')
        if self.mode != "update":
            for name, value in (("update_columns", self.update), ("version_column", self.version)):
                if value is not None:
                    raise bad(name, value, 'needs on_conflict="update"')
        self._check_within()

    def _check_within(self) -> None:
        version = None if self.version is None else (self.version,)
        for name, value in (
            ("conflict_columns", self.conflict),
            ("update_columns", self.update),
            ("version_column", version),
        ):
            stray = [column for column in value or () if column not in self.columns]
            if stray:
                raise bad(name, stray, f"must be among columns={self.columns!r}")
        both = sorted(set(self.conflict or ()) & set(self.update or ()))
        if both:
            raise bad("update_columns", both, "must not repeat conflict_columns")

    @property
    def shown(self) -> str:
        """The table's name in messages."""
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


def column_names(name: str, value: object) -> tuple[str, ...]:
    """Check a sequence of distinct column names. Raises `ConfigError`."""
    rule = "must be a sequence of at least one column name, without repetitions"
    if isinstance(value, str):
        listed = tuple(each.strip() for each in value.split(","))
        raise bad(name, value, f"{rule}; write {name}={listed!r}")
    if isinstance(value, bytes) or not isinstance(value, Sequence):
        raise bad(name, value, rule)
    named = cast("Sequence[str]", value)
    found = tuple(named)
    if not found or len(set(found)) != len(found):
        raise bad(name, named, rule)
    for each in found:
        check_name(name, each)
    return found


def optional_names(name: str, value: object) -> tuple[str, ...] | None:
    """Like `column_names`, but accept `None`."""
    return None if value is None else column_names(name, value)


def check_name(name: str, value: object) -> None:
    """Check one name. Raises `ConfigError`."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise bad(name, value, "must be a name: text that is not empty, without NUL")


class KeyConflicts:
    """The items of one batch that hold a key, in the order of the batch.

    Args:
        place: the destination, for messages.
        names: the names of the key's columns or fields, for messages.
    """

    def __init__(self, place: str, names: Sequence[str]) -> None:
        self._place = place
        self._names = ", ".join(names)
        self._holders: dict[Hashable, bool] = {}
        """For each key with an item that is stored or may be: whether one of them is the stored one."""

    def note_stored(self, key: Hashable) -> None:
        """Record that this attempt has stored an item under a key."""
        self._holders[key] = True

    def verdict(
        self, key: Hashable | None, *, is_same: bool
    ) -> KeyRepeated | StoredRowDiffers | None:
        """The error of the next item of a taken key; `None` if it is a duplicate.

        `is_same` states whether it has the contents of the stored row. Without a `key`, its
        conflict is not under this one.
        """
        if key is None:
            return self.differs("no row has its key, but another unique key of it is taken")
        has_holder, is_held = key in self._holders, self._holders.get(key, False)
        self._holders[key] = is_held or is_same
        if is_same and not is_held:
            return None
        if has_holder:
            return KeyRepeated(self._names)
        return self.differs("the row of its key has other contents")

    def differs(self, found: str) -> StoredRowDiffers:
        """The error of an item that may be stored, by what was `found` at the destination."""
        return StoredRowDiffers(
            f"an earlier attempt may have stored this item in {self._place}, but {found} (key: "
            f"{self._names}): another writer may have stored them, or have changed this item's "
            "row; compare the two, and correct the item or the row"
        )
