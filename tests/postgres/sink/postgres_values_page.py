"""The page of the Python values that each type of column takes: `python -m
tests.postgres.sink.postgres_values_page` writes it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.postgres.sink.postgres_help import batch_of
from tests.postgres.sink.postgres_values_help import GOOD, column_types, connected, table_of, tried

from sluicegate import send
from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.postgres.sink.postgres_help import Database

    from sluicegate.postgres import PostgresSink

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "postgresql-values.md"
_HEAD = """# Values of PostgreSQL columns

The Python values that [`PostgresSink`](../how-to/write-to-postgresql.md) takes for each type of
column. A test measures this table on a real server. Whatever the statement that writes a batch,
each value gives what it gives in a row by itself: the same stored value, or a row that fails alone.
`None` is NULL in every column.

| column | Python values | sent as |
|---|---|---|
"""
_TAIL = """
- `bool` is listed where `int` is not taken. A value that would be changed, such as 1.5 for an
  `integer` column, [fails its row](../how-to/write-to-postgresql.md#items).
- The text of a `str` is the server's text form of the type; a text that the server cannot read fails
  its row alone, whatever the server's error code.
- A `bytea` column takes any object with a contiguous buffer, such as a NumPy array or an
  `array.array`: its bytes are stored.
- A domain takes what its base type takes, and checks the value.
- An array column takes a list, or another sized collection, of the values of its elements. A list in
  it is a further dimension.
- The types **sent as text** are those that asyncpg cannot encode in binary form; likewise their
  arrays, and composites and ranges that contain them. The sink sends text, which the server
  converts. They are never written by `COPY` directly.
- With codecs of your own, a column takes what its codec takes.

## Inferred types

[A sink that creates its table or adds columns](../how-to/write-to-postgresql.md#create-and-grow-the-table)
chooses these types, by the values of a batch or by type hints. A value reads back as it was stored.

| Python | Avro | column |
|---|---|---|
| `bool` | `boolean` | `boolean` |
| `int` | `long` | `bigint` |
| | `int` | `integer` |
| `int` beyond 64 bits (values only) | | `numeric` |
| `float` | `double` | `double precision` |
| | `float` | `real` |
| `Decimal` | `decimal` | `numeric`; from Avro with precision and scale |
| `str` | `string`, `enum` | `text` |
| `bytes`, `bytearray`, `memoryview` | `bytes`, `fixed` | `bytea` |
| `datetime` with a zone, and each type hint `datetime` | `timestamp-millis`, `timestamp-micros` | `timestamptz` |
| `datetime` without a zone | `local-timestamp-millis`, `local-timestamp-micros` | `timestamp` |
| `date` | `date` | `date` |
| `time` | `time-millis`, `time-micros` | `time`; `timetz` for values with a zone |
| `timedelta` | | `interval` |
| `UUID` | `uuid` | `uuid` |
| a mapping, a list, a tuple, an object with declared fields | `record`, `array`, `map` | `jsonb` |

- `None`, and null in a union, say nothing. Subclasses count as their base, such as a `StrEnum` as `str`.
- Of whole numbers and floats together, the column is `double precision`; with a `Decimal` it is
  `numeric`; of dates and times of day with a date, it is the latter. Of any other mixture the first
  value decides, and the others fail their rows. Such a type hint or Avro union is refused.
- A value or a type hint of any other type has no column type: name one in `columns=`.
- A value of a record batch counts as the Python object that it becomes in a row.
"""
_LABELS = {
    "mood": "an enumeration",
    "pair": "a composite",
    "priced": "a composite with a `money` field",
    "textrange": "a range of your own",
    "vector": "`vector` and other types of extensions",
}
_LEFT_OUT = {"own.date", "size", "sizes", "price", "document", "textmultirange"}
_ANY = ["bool", "dict", "float", "int", "list", "str"]


def _shown(values: Iterable[Any]) -> str:
    """The names of the values' classes; those of JSON are one."""
    names = sorted({_name(type(value)) for value in values}, key=str.lower)
    if set(_ANY) <= set(names):
        return "`str` with JSON, or any [JSON-serializable object](../how-to/write-to-a-file.md)"
    return ", ".join(f"`{name}`" for name in names if name != "bool" or "int" not in names)


def _name(kind: type) -> str:
    if kind.__module__ in {"asyncpg.types", "asyncpg.pgproto.types"}:
        return f"asyncpg.{kind.__name__}"
    if kind.__module__ in {"ipaddress", "numpy", "uuid"}:
        return f"{kind.__module__}.{kind.__name__}"
    return kind.__name__


async def page(dsn: str) -> str:
    """Measure the table: each type is tried with the good values of all types."""
    every = [value for name in sorted(GOOD) for value in GOOD[name] if value != ""]
    lines: dict[tuple[str, str], list[str]] = {}
    con = await connected(dsn)
    try:
        for kind, name in await column_types(con):
            if name in _LEFT_OUT or name not in GOOD:
                continue
            async with table_of(con, dsn, kind) as db:
                async with db.sink(("id", "v"), pool_size=1) as sink:
                    (found,) = await tried(db, [every], partial(_send, sink))
                as_text = await _is_sent_as_text(db)
            spelled = await con.fetchval("SELECT format_type($1::text::regtype, NULL)", kind)
            taken = [value for value, each in zip(every, found, strict=True) if type(each) is tuple]
            shown = _LABELS.get(name) or f"`{spelled}`"
            lines.setdefault((_shown(taken), "text" if as_text else "binary"), []).append(shown)
    finally:
        await con.close()
    rows = sorted((sent, ", ".join(sorted(names)), taken) for (taken, sent), names in lines.items())
    return (
        _HEAD + "".join(f"| {names} | {taken} | {sent} |\n" for sent, names, taken in rows) + _TAIL
    )


async def _send(sink: PostgresSink, rows: list[Any]) -> dict[int, BaseException]:
    return await send(sink, batch_of(rows))


async def _is_sent_as_text(db: Database) -> bool:
    async with db.sink(("id", "v"), pool_size=1) as sink:
        table = sink._table
        assert table is not None
        return bool(table.plan.uncopied or table.plan.texts)


if __name__ == "__main__":
    with embedded_postgres() as server:
        PAGE.write_text(asyncio.run(page(server.dsn)), encoding="utf-8")
