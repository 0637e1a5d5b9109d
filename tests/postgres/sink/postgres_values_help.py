"""Values for every type of PostgreSQL that a column may have, and what one row with each gives."""

from __future__ import annotations

import array
import datetime as dt
import ipaddress
import itertools
import uuid
from collections import UserList
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import asyncpg
import numpy as np
from asyncpg import BitString, Range
from tests.postgres.sink.postgres_help import Database, batch_of

from sluicegate import send

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from sluicegate.postgres import PostgresSink

OWN = """
DROP SCHEMA IF EXISTS own CASCADE; CREATE SCHEMA own;
CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public;
CREATE TYPE own.mood AS ENUM ('fine', 'bad');
CREATE TYPE own.pair AS (number int4, word text);
CREATE TYPE own.priced AS (number int4, price money);
CREATE TYPE own.textrange AS RANGE (subtype = text);
CREATE DOMAIN own.size AS int4 CHECK (VALUE < 1000);
CREATE DOMAIN own.price AS money;
CREATE DOMAIN own.sizes AS own.size[];
CREATE DOMAIN own.document AS jsonb;
CREATE TYPE own.date AS ENUM ('today');
"""
"""Types of every kind. One has the name of a built-in type."""
_AT = dt.datetime(2026, 1, 2, 3, 4, 5)
_ID = "12345678-1234-5678-1234-567812345678"
GOOD: dict[str, list[Any]] = {
    "bit": [BitString.frombytes(b"\x80", 1), b"\x80"],
    "bool": [True, False],
    "box": [((3, 4), (1, 2))],
    "bpchar": ["word", "word  "],
    "bytea": [b"\x00\xff", bytearray(b"b"), memoryview(b"m")],
    "char": [b"c"],
    "cid": [7],
    "cidr": ["10.0.0.0/8", ipaddress.ip_network("10.0.0.0/8")],
    "circle": [((1, 2), 3)],
    "date": [_AT.date(), dt.date.max],
    "float4": [1.5, 3],
    "float8": [1.5, 3],
    "inet": ["10.0.0.1", ipaddress.ip_address("::1")],
    "int2": [1, 2.0, np.int16(3)],
    "int4": [1, 2.0, np.int64(3), Decimal(4)],
    "int8": [1, 2**40],
    "interval": [dt.timedelta(1, 2)],
    "json": ['{"a": 1}', {"a": 1}, [1]],
    "jsonb": ['{"a": 1}', {"a": 1}, [1]],
    "jsonpath": ["$.a"],
    "line": [(1, 2, 3)],
    "lseg": [((1, 2), (3, 4))],
    "macaddr": ["08:00:2b:01:02:03", "08-00-2b-01-02-03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "money": ["1.50", "2"],
    "name": ["word"],
    "numeric": [1, 1.5, Decimal("2.50"), "3.5"],
    "oid": [7],
    "path": [((1, 2), (3, 4))],
    "pg_lsn": [77],
    "pg_snapshot": [(10, 20, (10,))],
    "point": [(1, 2)],
    "polygon": [((1, 2), (3, 4), (5, 6))],
    "refcursor": ["word"],
    "regclass": ["pg_class"],
    "regcollation": ['"C"'],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regnamespace": ["public"],
    "regoper": ["|/"],
    "regoperator": ["+(integer,integer)"],
    "regproc": ["now"],
    "regprocedure": ["abs(integer)"],
    "regrole": ["postgres"],
    "regtype": ["integer"],
    "aclitem": ["=r/postgres"],
    "text": ["word", ""],
    "tid": [(1, 2)],
    "time": [_AT.time()],
    "timestamp": [_AT, _AT.date()],
    "timestamptz": [_AT.replace(tzinfo=dt.UTC)],
    "timetz": [_AT.time().replace(tzinfo=dt.UTC)],
    "tsquery": ["a & b"],
    "tsvector": ["a b"],
    "txid_snapshot": [(10, 20, (10,))],
    "uuid": [uuid.UUID(_ID), _ID],
    "varbit": [BitString.frombytes(b"\xa0", 3)],
    "varchar": ["word"],
    "vector": ["[1,2,3]"],
    "xid": [7],
    "xid8": [7],
    "mood": ["fine"],
    "own.date": ["today"],
    "pair": [(1, "word"), {"number": 1, "word": "x"}],
    "priced": ["(1,2.50)"],
    "textrange": [("a", "b"), Range("a", "b")],
    "size": [7],
    "price": ["1.50"],
    "sizes": [[1, 2]],
    "document": [{"a": 1}, "[]"],
    **{name: [Range(1, 3), (1, 2)] for name in ("int4range", "int8range", "numrange")},
    "daterange": [Range(_AT.date(), None)],
    "tsrange": [Range(_AT, None)],
    "tstzrange": [Range(_AT.replace(tzinfo=dt.UTC), None)],
    **{
        name: [[Range(1, 3), Range(5, 6)]]
        for name in ("int4multirange", "int8multirange", "nummultirange")
    },
    "datemultirange": [[Range(_AT.date(), None)]],
    "tsmultirange": [[Range(_AT, None)]],
    "tstzmultirange": [[Range(_AT.replace(tzinfo=dt.UTC), None)]],
    "textmultirange": [[Range("a", "b")]],
}
"""Values that a column of each type stores. Other types, such as `gtsvector`, have no input, or only
one that asyncpg does not use (`int2vector`)."""
BAD: dict[str, list[Any]] = {
    "jsonpath": ["$."],
    **{name: ["{", "\0"] for name in ("json", "jsonb", "document")},
    "xml": ["<a>"],
    "tsquery": ["a & & b"],
    "tsvector": ["'"],
    "name": ["n" * 64],
    "varbit": ["101"],
    "mood": ["worse"],
    "price": ["a lot"],
    "priced": ["(1", (1, "2.50")],
    "size": [1001],
    "sizes": [[1001]],
    "pair": [(1, 2, 3), (1, 2)],
    "vector": ["[1,2,", [1.0, 2.0]],
    "int4": [1.5, 2**31],
    "date": [_AT],
    "time": [_AT.time().replace(tzinfo=dt.UTC)],
    "own.date": ["tomorrow"],
    "numeric": [Decimal("1e200000"), "much"],
    "text": ["\0", "\ud800"],
}
_UNREADABLE = "no such thing, ("
"""Text that no type with an input of its own accepts."""
SEQUENCES: list[Any] = [
    [], [1, 2], (1,), np.array([65, 255], "u1"), array.array("B", [65, 66]), np.array(5), range(2), np.array([], "u1"),
    (), [1], {3}, ["a", "b"], (0, (1, 5), -1), [[1], [2]], np.array([65], "u1"), np.array([[1, 2]]), UserList([1]), {"a": 1}, b"bytes",
]  # fmt: skip
WRONG: list[Any] = [object(), _UNREADABLE, True, 3, 2.5, 1j, BitString.frombytes(b"\x80", 2)]
NANS: list[Any] = [float("nan"), Decimal("NaN"), float("inf"), np.float64("nan")]


async def column_types(con: Any, *, arrays: bool = False) -> list[tuple[str, str]]:
    """The types that a column may have, as SQL and by name: the server's, an extension's, own ones.

    Without those of internal use, which have no input; with `arrays`, only types that have arrays.
    """
    found = await con.fetch(
        """SELECT quote_ident(n.nspname) || '.' || quote_ident(t.typname) AS path,
            CASE WHEN n.nspname = 'own' AND t.typname = 'date' THEN 'own.date' ELSE t.typname END AS name
        FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_class c ON c.oid = t.typrelid
        WHERE (n.nspname IN ('pg_catalog', 'own') OR EXISTS (SELECT FROM pg_depend d
                WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'))
            AND (t.typcategory <> 'Z' OR t.typname = 'char') AND (NOT $1 OR t.typarray <> 0) AND t.typtype IN ('b', 'r', 'm', 'd', 'e', 'c')
            AND (t.typrelid = 0 OR c.relkind = 'c') AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)
        ORDER BY 1""",
        arrays,
    )
    return [(row["path"], row["name"]) for row in found]


@asynccontextmanager
async def table_of(con: Any, dsn: str, kind: str) -> AsyncGenerator[Database]:
    await con.execute(
        f"DROP TABLE IF EXISTS one_type; CREATE TABLE one_type (id int4 PRIMARY KEY, v {kind})"
    )
    yield Database(dsn, "one_type", con)


Outcome = tuple[str | None] | str
"""The stored text, or the class of the error."""


async def tried(
    db: Database, batches: Iterable[Sequence[Any]], write: Callable[[list[Any]], Any]
) -> list[list[Outcome]]:
    """The outcome of each value of each batch. Other rows than these, except -1, fail the test."""
    await db.con.execute(f"DELETE FROM {db.table}")
    numbers = itertools.count()
    given = [[(next(numbers), value) for value in batch] for batch in batches]
    refused: dict[int, str] = {}
    for rows in given:
        for place, error in (await write(rows)).items():
            refused[rows[place][0]] = type(error).__name__
    found = await db.con.fetch(f"SELECT id, v::text FROM {db.table} WHERE id <> -1")
    stored = dict(map(tuple, found))
    assert len(stored) == len(found)
    assert stored.keys() | refused.keys() == {number for rows in given for number, _ in rows}
    assert not stored.keys() & refused.keys()
    return [
        [refused[number] if number in refused else (stored[number],) for number, _ in rows]
        for rows in given
    ]


async def alone(db: Database, sink: PostgresSink, values: Sequence[Any]) -> list[Outcome]:
    """What each value gives in a row by itself."""
    found = await tried(db, [[value] for value in values], lambda rows: send(sink, batch_of(rows)))
    return [each for (each,) in found]


async def connected(dsn: str) -> Any:
    con = await asyncpg.connect(dsn)
    await con.execute(OWN)
    return con
