"""Every class of Python values in every type of column: the stored value, read by a plain driver, is
the given one, or the item is refused alone.

The page's tables of accepted values are made of the values that were stored. Proven here:
batcher/B38.
"""

from __future__ import annotations

import array
import enum
import ipaddress
import json
import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pytest
from tests.sql.mariadb import IS_MYSQL
from tests.sql.sql_help import written

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.sql.sql_help import SqlTable

pytestmark = pytest.mark.usefixtures("real_clock")
PAGE = Path(__file__).parents[2] / "docs/how-to/write-to-sql.md"
TOKYO = timezone(timedelta(hours=9))
AT = datetime(2026, 1, 2, 3, 4, 5, 678_901)
NAN, INF = float("nan"), float("inf")
LONG: Any = np.longdouble
pd: Any = pytest.importorskip("pandas")


class Number(enum.IntEnum):
    SEVEN = 7


class Word(enum.StrEnum):
    A = "a"


VALUES: Sequence[Any] = [
    *(0, 1, 7, -3, 99, 2026, 2**31, 2**53 + 1, 2**63 - 1, 2**70),
    *(True, False),
    *(0.0, 1.5, 2.0, -0.5, 0.1, 1e15, 1e300, NAN, INF, -INF),
    *map(
        Decimal, ("1.5", "2", "0.1", "1E+3", "-0", "1E-10", "1E+60", "1.2345678901234567890123E+22")
    ),
    *map(
        Decimal,
        ("1.234567890123456789E-8", "1E+200000", "NaN", "sNaN", "Infinity", "12345678901234567.89"),
    ),
    *(
        "",
        "a",
        "b",
        "12345678901234567.89",
        "a,b",
        "7",
        " 7",
        "1.5",
        "007",
        "1e5",
        "nan",
        "true",
        "é☃",
        "x\\'\"\n",
        "{}",
    ),
    *("2026-01-02", "20260102", "26-1-2", "0000-00-00", "2026-01-02 00:00:00", "infinity", "now"),
    *("2026-01-02T03:04:05Z", "2026-01-02 03:04:05.5", "2026-01-02 03:04:05+09:00", "2026", "0"),
    *(
        "03:04:05",
        "03:04:05+09:00",
        "-01:00:00",
        "30:00:00",
        "00000000-0000-0000-0000-000000000005",
    ),
    *(b"", b"a", b"7", b"\0\xff", bytearray(b"b"), memoryview(b"abc")[1:]),
    *(date(2026, 1, 2), AT, datetime(2026, 1, 2), AT.replace(tzinfo=UTC), AT.replace(tzinfo=TOKYO)),
    *(time(), time(3, 4, 5), time(3, 4, 5, 678_901), time(3, 4, 5, tzinfo=TOKYO)),
    *(
        timedelta(),
        timedelta(minutes=5),
        timedelta(seconds=-1),
        timedelta(hours=25, microseconds=1),
    ),
    UUID(int=5),
    *(
        [],
        [1, 2],
        ["a"],
        [1, None],
        (),
        (1,),
        (67, 68),
        ("a", "b"),
        {"a"},
        {"a", "b"},
        frozenset("b"),
    ),
    *({}, {"b": 1}, {"a": [1, None, "é"]}, {"a": NAN}, [INF], range(2), array.array("B", b"ab")),
    *(np.int64(7), np.uint8(2), np.int32(-3), np.float64(1.5), np.float32(0.1), np.float32(NAN)),
    *(
        np.longdouble("1.5"),
        np.bool_(True),
        np.str_("a"),
        np.bytes_(b"a"),
        np.datetime64("2026-01-02"),
    ),
    *(np.array([1, 2]), np.array(["a"]), np.zeros(0), np.array(7)),
    *(Number.SEVEN, Word.A, Fraction(1, 2), Fraction(1, 3), 1j, object(), Path("a"), type),
    *(pd.Timestamp(AT), pd.Timestamp("2026-01-02 03:04:05.000000001"), pd.Timedelta(1), pd.NaT),
    *(ipaddress.ip_address("10.0.0.1"), "10.0.0.1"),
]

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "mysql": {
        "`TINYINT` to `BIGINT`": "BIGINT",
        "`DECIMAL`": "DECIMAL(65, 30)",
        "`FLOAT`, `DOUBLE`": "DOUBLE",
        "`BIT`": "BIT(20)",
        "`YEAR`": "YEAR",
        "`CHAR`, `VARCHAR`, `TEXT`": "VARCHAR(400)",
        "`ENUM`": "ENUM('a', '7')",
        "`SET`": "SET('a', 'b')",
        "`VARBINARY`, `BLOB`": "VARBINARY(20)",
        "`DATE`": "DATE",
        "`TIME`": "TIME(6)",
        "`DATETIME`, `TIMESTAMP`": "DATETIME(6)",
        **({} if IS_MYSQL else {"`UUID` of MariaDB": "UUID"}),
        "`JSON`": "JSON",
    },
    "sqlite": {
        "`INTEGER`, `INT`": "INTEGER",
        "`NUMERIC`, `DECIMAL`, `REAL`, unknown types": "NUMERIC",
        "`BOOLEAN`": "BOOLEAN",
        "`TEXT`, `VARCHAR`, `CHAR`": "TEXT",
        "`BLOB`": "BLOB",
        "`DATE`": "DATE",
        "`TIME`": "TIME",
        "`DATETIME`, `TIMESTAMP`": "DATETIME",
        "`JSON`": "JSON",
        "no type": "",
    },
}
CLASSES: Mapping[type[Any], str] = {
    **{
        each: each.__name__
        for each in (int, bool, float, Decimal, str, bytes, bytearray, memoryview)
    },
    **{each: each.__name__ for each in (date, datetime, time, timedelta, UUID, list, tuple, set)},
    **{each: each.__name__ for each in (frozenset, dict, ipaddress.IPv4Address)},
}
LIKE = {
    np.int64: 7,
    np.float64: 1.5,
    np.str_: "a",
    np.bytes_: b"a",
    np.bool_: True,
    Number: 7,
    Word: "a",
}
"""Classes whose values are taken as the equal ones of Python."""
TITLES = {"mysql": "MySQL, MariaDB", "sqlite": "SQLite"}


# -- the value that a column should have -------------------------------------------------------------


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def number(value: Any) -> Any:
    """A number, as an exact decimal."""
    value = _plain(value)
    if isinstance(value, (str, Decimal)):
        found = Decimal(value)
    elif isinstance(value, (int, float)):
        found = Decimal(repr(value + 0))
    else:
        found = Decimal(repr(_exactly(value)))
    return "NaN" if found.is_qnan() else found + 0 if found.is_nan() else found


def _exactly(value: Any) -> float:
    if float(value) != value:
        raise ValueError(value)
    return float(value)


def nearest(value: Any) -> Any:
    """A number, as the nearest float."""
    found = float(value if isinstance(value, (str, Decimal)) else _plain(value))
    return "NaN" if found != found else found


def word(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, (Fraction, LONG)):
        value = _exactly(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, UUID)):
        raise TypeError(value)
    return str(value + 0) if isinstance(value, int) else str(value)


def content(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(value)
    return bytes(value)


def bits(value: Any) -> int:
    return int.from_bytes(value, "big") if isinstance(value, bytes) else int(number(value))


def truth(value: Any) -> bool:
    if number(value if not isinstance(value, np.bool_) else int(value)) not in {0, 1} or isinstance(
        value, str
    ):
        raise ValueError(value)
    return bool(value)


def day(value: Any) -> date:
    found = moment(value)
    if found.time() != time():
        raise ValueError(value)
    return found.date()


def moment(value: Any) -> datetime:
    if isinstance(value, str):
        assert "-" in value
        value = datetime.fromisoformat(value)
    if isinstance(value, pd.Timestamp) and value.nanosecond:
        raise ValueError(value)
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    found: datetime = value
    return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)


def clock(value: Any) -> timedelta:
    """A time of day, or a duration."""
    if isinstance(value, str):
        sign = -1 if value.startswith("-") else 1
        hours, minutes, seconds = value.lstrip("-").split(":")
        return sign * timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))
    if isinstance(value, time):
        assert value.tzinfo is None
        return timedelta(0, (value.hour * 60 + value.minute) * 60 + value.second, value.microsecond)
    return duration(value)


def duration(value: Any) -> timedelta:
    if not isinstance(value, timedelta) or getattr(value, "nanoseconds", False):
        raise TypeError(value)
    return value


def tree(value: Any) -> Any:
    """A value of JSON, with exact numbers."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (Fraction, LONG)):
        value = _exactly(value)
    text = json.dumps(_plain(value), allow_nan=False)
    return stored_tree(text)


def stored_tree(stored: Any) -> Any:
    text = stored if isinstance(stored, str) else json.dumps(stored)
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def members(value: Any) -> set[str]:
    found = {*(value.split(",") if isinstance(value, str) else value)} - {""}
    if isinstance(value, dict) or not found <= {"a", "b"}:
        raise TypeError(value)
    return found


def uuid(value: Any) -> UUID:
    return UUID(str(value))


def year(value: Any) -> int:
    if isinstance(value, str) and len(value) != 4:
        raise ValueError(value)
    return int(number(value))


FORMS: Mapping[str, Any] = {
    **dict.fromkeys(("BIGINT", "DECIMAL(65, 30)", "INTEGER", "NUMERIC"), number),
    "DOUBLE": nearest,
    "BOOLEAN": truth,
    **dict.fromkeys(("VARCHAR(400)", "TEXT", "ENUM('a', '7')"), word),
    **dict.fromkeys(("VARBINARY(20)", "BLOB"), content),
    "DATE": day,
    **dict.fromkeys(("TIME(6)", "TIME"), clock),
    **dict.fromkeys(("DATETIME(6)", "DATETIME"), moment),
    "JSON": tree,
    "BIT(20)": bits,
    "YEAR": year,
    "SET('a', 'b')": members,
    "UUID": uuid,
    "": lambda value: (
        value
        if isinstance(value, (str, bytes))
        else number(value)
        if not isinstance(value, (bytearray, memoryview))
        else bytes(value)
    ),
}


def form(column: str, value: Any) -> Any:
    """The value as the column should have it. Raises an error if it has none."""
    return FORMS[column](value)


# -- the test -----------------------------------------------------------------------------------------


def lines(database: str, stored: Mapping[str, set[str]]) -> list[str]:
    """The page's table of one database."""
    made = [f"| column of {TITLES[database]} | Python classes |", "|---|---|"]
    for column, taken in stored.items():
        names = ", ".join(f"`{each}`" for each in CLASSES.values() if each in taken)
        made.append(f"| {column} | {names} |")
    return made


async def test_a_value_is_stored_as_it_is_or_refused_alone(table: SqlTable) -> None:
    taken: dict[str, set[str]] = {}
    wrong: list[str] = []
    columns = COLUMNS[table.name]
    table.make(
        "id INT NOT NULL, " + ", ".join(f"c{at} {each}" for at, each in enumerate(columns.values()))
    )
    for at, (title, column) in enumerate(columns.items()):
        name = f"c{at}"
        table.run("DELETE FROM words")
        async with table.sink(("id", name)) as sink:
            errors = await written(sink, [*enumerate(VALUES)])
        found = dict(await table.looked(f"id, {name}", "id"))
        assert found.keys() == {*range(len(VALUES))} - errors.keys(), title
        for index, error in errors.items():
            if type(error).__name__ not in {"PermanentError", "TooLargeError"}:
                wrong.append(f"{title}: {VALUES[index]!r} {error!r}")
        for index, stored in found.items():
            value = VALUES[index]
            try:
                has = stored_tree(stored) if FORMS[column] is tree else form(column, stored)
                is_same = has == form(column, value)
            except Exception as error:
                is_same, stored = False, f"{stored!r} ({error!r})"
            if not is_same:
                wrong.append(f"{title}: {value!r} ({type(value).__name__}) became {stored!r}")
        classes = {type(VALUES[index]) for index in found}
        taken[title] = {CLASSES[each] for each in classes if each in CLASSES}
        given = [VALUES[index] for index in found]
        for like, base in LIKE.items():
            if (like in classes) != any(
                type(each) is type(base) and each == base for each in given
            ):
                wrong.append(f"{title}: {like.__name__} is not taken as {base!r}")
    assert not wrong, "\n".join(wrong)
    page = PAGE.read_text()
    if IS_MYSQL:
        page = re.sub(r"\n.*of MariaDB.*", "", page)
    expected = "\n".join(lines(table.name, taken))
    assert expected in page, f"the page must have\n{expected}"
