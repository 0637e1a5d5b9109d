"""PostgreSQL's types: their identity, the types that they contain, and checks of their values.

1. A type is identified by its OID and its name in the catalog, never by `format_type`, whose text
   depends on the session: `quote_all_identifiers` quotes it, and a type of the user with the name of
   a built-in type, in a schema that is searched first, gets its place.
2. A built-in type has the name that the documentation uses, such as `bigint`. Any other type has a
   name with a dot: its extension or, if it belongs to none, its schema comes first.
3. A domain is the type that it is over, in any depth.
4. Values that drivers would change are checked in the forms that drivers accept: an array is a list,
   or another sized collection; a tuple in it is an element. A composite is a tuple, or a mapping by
   field. A range has bounds, or is a list or tuple of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..._core.values.changed_values import (
    ChangedValue,
    Check,
    dateless,
    day,
    decimal,
    duration,
    geometric,
    is_array,
    point,
    time_of_day,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable


_SPELLED = {
    "bool": "boolean",
    "bpchar": "character",
    "float4": "real",
    "float8": "double precision",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "timetz": "time with time zone",
    "varbit": "bit varying",
    "varchar": "character varying",
}
"""The built-in types whose name in the catalog is not the one in the documentation."""
_FIRST_OWN = 16_384
"""The first OID that a server assigns; smaller ones are the same on every server."""
GEOMETRIC: Mapping[str, Check] = {
    "box": geometric("box", size=2, points=2),
    "circle": geometric("circle", size=2, points=1),
    "line": geometric("line", size=3, points=0),
    "lseg": geometric("line segment", size=2, points=2),
    "path": geometric("path", size=None, points=None),
    "point": point,
    "polygon": geometric("polygon", size=None, points=None),
}
SCALARS: Mapping[str, Check] = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid", "xid", "xid8"), whole),
    "date": day,
    "time without time zone": time_of_day,
    "time with time zone": dateless,
    "interval": duration,
    "numeric": decimal,
    **GEOMETRIC,
}


def identity(oid: str) -> str:
    """SQL for the identity of the type with this OID, given as SQL."""
    return f"""(SELECT CASE
            WHEN i.oid >= {_FIRST_OWN} THEN COALESCE((SELECT x.extname FROM pg_catalog.pg_depend d
                JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid
                WHERE d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = i.oid AND d.deptype = 'e'
                    AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass), h.nspname) || '.' || i.typname
            {" ".join(f"WHEN i.typname = '{name}' THEN '{spelled}'" for name, spelled in _SPELLED.items())}
            ELSE i.typname END || CASE WHEN i.oid = own.oid THEN '' ELSE '[]' END
        FROM pg_catalog.pg_type own
        JOIN pg_catalog.pg_type i ON i.oid = CASE WHEN EXISTS (
            SELECT FROM pg_catalog.pg_type e WHERE e.oid = own.typelem AND e.typarray = own.oid) THEN own.typelem ELSE own.oid END
        JOIN pg_catalog.pg_namespace h ON h.oid = i.typnamespace
        WHERE own.oid = {oid})"""  # noqa: S608  # the text of a column


TYPES = f"""WITH RECURSIVE reached(oid) AS (
        SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = {{table}} AND a.attnum > 0 AND NOT a.attisdropped
        UNION
        SELECT part.oid FROM reached JOIN pg_catalog.pg_type t ON t.oid = reached.oid, LATERAL (
            SELECT t.typbasetype WHERE t.typtype = 'd'
            UNION ALL SELECT t.typelem WHERE t.typelem <> 0 AND t.typcategory = 'A'
            UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
            UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r
            WHERE t.typtype = 'm' AND (pg_catalog.to_jsonb(r)->>'rngmultitypid')::oid = t.oid
        ) part(oid)
    )
    SELECT t.oid::int8 AS oid, {identity("t.oid")} AS name, CASE
            WHEN t.typtype <> 'b' THEN t.typtype::text
            WHEN t.typelem <> 0 AND t.typcategory = 'A' THEN 'a' ELSE 'b' END AS kind,
        CASE t.typtype WHEN 'd' THEN ARRAY[t.typbasetype::int8]
            WHEN 'b' THEN ARRAY[t.typelem::int8]
            WHEN 'r' THEN ARRAY(SELECT r.rngsubtype::int8 FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid)
            WHEN 'm' THEN ARRAY(SELECT r.rngtypid::int8 FROM pg_catalog.pg_range r
                WHERE (pg_catalog.to_jsonb(r)->>'rngmultitypid')::oid = t.oid)
            ELSE ARRAY(SELECT a.atttypid::int8 FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid
                AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) END AS parts,
        ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE t.typtype = 'c' AND a.attrelid = t.typrelid
            AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) AS fields
    FROM reached JOIN pg_catalog.pg_type t ON t.oid = reached.oid
"""  # noqa: S608  # text of this module
"""The types of a table's columns and all types that they contain, by `{table}`, its OID.

Before version 14 there are no multiranges, and no column `rngmultitypid`.
"""


@dataclass(frozen=True, slots=True)
class PostgresType:
    """A type, without domains."""

    name: str
    """Its identity."""
    kind: str
    """`a`: array, `c`: composite, `r`: range, `m`: multirange; others contain no types."""
    parts: tuple[PostgresType, ...] = ()
    fields: tuple[str, ...] = ()
    """The names of a composite's parts."""

    @property
    def element(self) -> str | None:
        """The name of the type of an array's elements, if these contain no other types."""
        return self.parts[0].name if self.kind == "a" and not self.parts[0].parts else None


def types_of(rows: Iterable[Mapping[str, Any]]) -> dict[int, PostgresType]:
    """The types by their oid, from the rows of `TYPES`."""
    found = {row["oid"]: row for row in rows}

    def made(oid: int) -> PostgresType:
        row = found[oid]
        if row["kind"] == "d":
            return made(row["parts"][0])
        parts = row["parts"] if row["kind"] in "acrm" else ()
        return PostgresType(row["name"], row["kind"], tuple(map(made, parts)), tuple(row["fields"]))

    return {oid: made(oid) for oid in found}


def check_of(kind: PostgresType) -> Check | None:
    """The check of a type's values; `None` if they need none."""
    if not kind.parts:
        return SCALARS.get(kind.name)
    checks = [check_of(part) for part in kind.parts]
    if kind.kind == "c":
        return of_composite(kind.fields, checks)
    inner = checks[0]
    return None if inner is None else _CONTAINERS[kind.kind](inner)


def of_array(element: Check) -> Check:
    """The check of arrays in any number of dimensions."""

    def checked(value: Any) -> Any:
        if is_array(value):
            for each in cast("Iterable[Any]", value):
                if is_array(each) and not isinstance(each, tuple):
                    checked(each)
                elif each is not None:
                    element(each)
        return value

    return checked


def of_range(bound: Check) -> Check:
    """The check of ranges."""

    def checked(value: Any) -> Any:
        given: object = value
        bounds: Sequence[Any] = ()
        if isinstance(given, (list, tuple)):
            bounds = cast("Sequence[Any]", given)
        elif not isinstance(given, str):
            bounds = (getattr(given, "lower", None), getattr(given, "upper", None))
        for each in bounds:
            if each is not None:
                bound(each)
        return value

    return checked


def of_composite(names: Sequence[str], checks: Sequence[Check | None]) -> Check:
    """The check of composites, by the names and the checks of their fields.

    The server refuses a wrong number of fields with an error that names no row. A driver may take
    the characters of a text for fields, unless it is the literal of a row.
    """
    named = dict(zip(names, checks, strict=True))

    def fields(value: Any) -> Iterable[tuple[str, Any]]:
        if isinstance(value, Mapping):
            given = cast("Mapping[str, Any]", value)
            return [(name, given.get(name)) for name in names]
        if isinstance(value, str) and (len(value) == len(names) or not value.startswith("(")):
            raise ChangedValue("a text for a composite; pass a tuple or a mapping")
        if not is_array(value):
            return ()
        row = [*cast("Iterable[Any]", value)]
        if len(row) != len(names):
            raise ChangedValue(f"{len(row)} fields for a composite of {len(names)}")
        return zip(names, row, strict=True)

    def checked(value: Any) -> Any:
        for name, part in fields(value):
            if part is not None and (check := named[name]) is not None:
                try:
                    check(part)
                except ChangedValue as error:
                    raise ChangedValue(f"field {name!r}: {error}") from error
        return value

    return checked


def of_multirange(part: Check) -> Check:
    """The check of multiranges."""

    def checked(value: Any) -> Any:
        if is_array(value):
            for each in cast("Iterable[Any]", value):
                if each is not None:
                    part(each)
        return value

    return checked


_CONTAINERS: dict[str, Callable[[Check], Check]] = {
    "a": of_array,
    "r": of_range,
    "m": of_multirange,
}
