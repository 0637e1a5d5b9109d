"""Rows of Python values as binary `COPY`, by a function that is generated per table.

1. A type has one exact Python class whose values it packs without further checks, and a function
   for other values: `None`, and values with unambiguous bytes. The function raises `Declined` for
   the rest: subclasses, numpy scalars, naive datetimes for `timestamptz`, a time of day with a zone
   for `time`, extremes that asyncpg converts to infinity.
2. Adjacent fixed-width values are packed together, with the length of the value after them. For
   `(bigint, text)` the function is:

    for v0, v1 in rows:
        if type(v0) is int and type(v1) is str:
            b1 = v1.encode()
            append(pack0(2, 8, v0, len(b1)))
            append(b1)
        else:
            append(head)
            append(field0(v0))
            append(field1(v1))
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .wire import EPOCH_DAYS, HEADER, JSONB_VERSION, NULL, TRAILER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_UUID = re.compile("[0-9a-fA-F-]{32,36}")
_HEX_DIGITS = 32
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal() + EPOCH_DAYS

GIVEN: dict[str, Any] = {
    "EPOCH": datetime(2000, 1, 1),  # noqa: DTZ001  # for columns without a time zone
    "EPOCH_UTC": datetime(2000, 1, 1, tzinfo=UTC),
    "EARLIEST": -63_082_281_600_000_000,
    "LATEST": 252_455_615_999_999_999,
    "EPOCH_ORDINAL": _EPOCH_ORDINAL,
    "FIRST_DAY": date.min.toordinal(),
    "LAST_DAY": date.max.toordinal(),
    "JSONB_VERSION": JSONB_VERSION,
    "date": date,
    "datetime": datetime,
    "time": time,
    "timedelta": timedelta,
    "UUID": UUID,
}
"""The names that the templates use in addition to builtins.

`EARLIEST` and `LATEST` are the microseconds of the first and the last `datetime`, which asyncpg
treats as infinity, as it does the first and the last day.
"""
PIECE = 1 << 16
"""Approximate size of a piece, in bytes."""
FIRST_ROWS = 256
"""Number of rows in the first piece; its size determines the number of rows in the next."""


class Declined(Exception):  # a signal, not an error
    """These rows must be sent by asyncpg, which accepts or refuses them."""


@dataclass(frozen=True, slots=True)
class Field:
    """The packing of values of one type; `{v}` in a template is the value's name."""

    python: str
    """The exact class of the values that the templates pack."""
    value: str
    """The packed value or values, or the bytes of a variable-width value."""
    others: dict[type, Callable[[Any], bytes]]
    """Functions for other classes, which return the bytes of their values."""
    code: str = ""
    """The `struct` format of the value; empty for variable-width bytes."""
    before: tuple[str, ...] = ()
    """Statements that the value needs."""
    gain: int = 0
    """Additional nanoseconds that asyncpg needs per value; negative if asyncpg is faster."""

    def whole(self, value: object) -> bytes:
        """Return the field of a value that the templates do not pack. Raises `Declined`."""
        if value is None:
            return NULL
        encode = self.others.get(type(value))
        if encode is None:
            raise Declined
        body = encode(value)
        return len(body).to_bytes(4, "big") + body


def _packer(code: str) -> Callable[[Any], bytes]:
    return struct.Struct(f">{code}").pack


def _integer(code: str) -> Field:
    return Field("int", "{v}", {bool: _packer(code)}, code, gain=-45)


def _float(code: str) -> Field:
    pack = _packer(code)
    return Field("float", "{v}", {int: pack, bool: pack}, code, gain=-45)


def _moment(epoch: str, gain: int) -> Field:
    return Field(
        "datetime",
        "m{v}",
        {},
        "q",
        (
            f"d{{v}} = {{v}} - {epoch}",
            "m{v} = (d{v}.days * 86400 + d{v}.seconds) * 1000000 + d{v}.microseconds",
            "if not EARLIEST < m{v} < LATEST: raise Declined",
        ),
        gain,
    )


def _uuid_bytes(text: str) -> bytes:
    digits = text.replace("-", "")
    if _UUID.fullmatch(text) is None or len(digits) != _HEX_DIGITS:
        raise Declined
    return bytes.fromhex(digits)


_TEXT = Field("str", "{v}.encode()", {}, gain=-60)
FIELDS: dict[str, Field] = {
    "smallint": _integer("h"),
    "integer": _integer("i"),
    "bigint": _integer("q"),
    "real": _float("f"),
    "double precision": _float("d"),
    "boolean": Field("bool", "{v}", {}, "?", gain=-45),
    "bytea": Field("bytes", "{v}", {}, gain=-45),
    **dict.fromkeys(("text", "character varying", "character", "bpchar", "name", "json"), _TEXT),
    "jsonb": Field("str", "JSONB_VERSION + {v}.encode()", {}, gain=-80),
    "uuid": Field("UUID", "{v}.bytes", {str: _uuid_bytes}, "16s", gain=-20),
    "date": Field(
        "date",
        "n{v} - EPOCH_ORDINAL",
        {},
        "i",
        ("n{v} = {v}.toordinal()", "if not FIRST_DAY < n{v} < LAST_DAY: raise Declined"),
        gain=-50,
    ),
    "time without time zone": Field(
        "time",
        "(({v}.hour * 60 + {v}.minute) * 60 + {v}.second) * 1000000 + {v}.microsecond",
        {},
        "q",
        ("if {v}.tzinfo is not None: raise Declined",),
        gain=-50,
    ),
    "timestamp without time zone": _moment("EPOCH", -50),
    "timestamp with time zone": _moment("EPOCH_UTC", 300),
    "interval": Field(
        "timedelta",
        "{v}.seconds * 1000000 + {v}.microseconds, {v}.days, 0",
        {},
        "qii",
        gain=-50,
    ),
}
"""The types with a packing, as PostgreSQL spells them."""


class RowEncoder:
    """Encodes rows for columns of given types."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.gain = sum(field.gain for field in fields)
        """Additional nanoseconds that asyncpg needs per row."""
        self._pack = _generate(fields)

    def pieces(self, rows: Sequence[Sequence[Any]]) -> Iterator[bytes]:
        """Yield the rows as binary `COPY`, in pieces. Raises `Declined` for other values."""
        start, size = 0, FIRST_ROWS
        out = [HEADER]
        try:
            while start < len(rows):
                self._pack(rows[start : start + size], out.append)
                start += size
                if start < len(rows):
                    piece = b"".join(out)
                    yield piece
                    size = max(1, PIECE * size // len(piece))
                    out = []
        except Exception as error:
            raise Declined from error
        out.append(TRAILER)
        yield b"".join(out)


@lru_cache(maxsize=64)
def row_encoder(kinds: tuple[str, ...]) -> RowEncoder | None:
    """Return the encoder for columns of these types; `None` if one of them has none."""
    fields = [FIELDS.get(kind) for kind in kinds]
    known = [field for field in fields if field is not None]
    return RowEncoder(known) if len(known) == len(fields) else None


def _generate(fields: Sequence[Field]) -> Callable[[Sequence[Any], Callable[[bytes], Any]], None]:
    made = _Function(fields)
    namespace: dict[str, Any] = {**GIVEN, "Declined": Declined, **made.names}
    exec(made.text, namespace)  # noqa: S102  # made only of the templates above
    found: Callable[[Sequence[Any], Callable[[bytes], Any]], None] = namespace["pack_rows"]
    return found


class _Function:
    """The text of a function that packs rows, and the names that it uses."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.names: dict[str, Any] = {"head": len(fields).to_bytes(2, "big")}
        self._fields = fields
        columns = ", ".join(f"v{place}" for place in range(len(fields)))
        lines = ["def pack_rows(rows, append):", f"    for {columns}, in rows:"]
        for number, group in enumerate(_groups(fields)):
            lines += [f"        {line}" for line in self._group(number, group)]
        singles = [line for place in range(len(fields)) for line in self._single(place)]
        self.text = "\n".join((*singles, *lines))

    def _group(self, number: int, group: Sequence[int]) -> list[str]:
        fields = {f"v{place}": self._fields[place] for place in group}
        guard = " and ".join(f"type({v}) is {field.python}" for v, field in fields.items())
        is_first = 0 in group
        lines = [f"if {guard}:"]
        lines += [
            f"    {line}" for line in self._pack_lines(f"pack{number}", group, is_first=is_first)
        ]
        lines += ["else:"]
        lines += ["    append(head)"] if is_first else []
        return lines + [f"    append(field{place}(v{place}))" for place in group]

    def _single(self, place: int) -> list[str]:
        field = self._fields[place]
        self.names[f"whole{place}"] = field.whole
        return [
            f"def field{place}(v{place}):",
            f"    if type(v{place}) is not {field.python}: return whole{place}(v{place})",
            "    out = []; append = out.append",
            *(
                f"    {line}"
                for line in self._pack_lines(f"single{place}", [place], is_first=False)
            ),
            "    return b''.join(out)",
        ]

    def _pack_lines(self, pack: str, group: Sequence[int], *, is_first: bool) -> list[str]:
        """Pack the values of a group; only the last one may have a variable width."""
        code, arguments = (">h", [str(len(self._fields))]) if is_first else (">", [])
        before: list[str] = []
        after: list[str] = []
        for place in group:
            field, v = self._fields[place], f"v{place}"
            before += [line.format(v=v) for line in field.before]
            value = field.value.format(v=v)
            code += f"i{field.code}"
            if field.code:
                arguments += [str(struct.calcsize(f">{field.code}")), value]
            else:
                before.append(f"b{place} = {value}")
                arguments.append(f"len(b{place})")
                after.append(f"append(b{place})")
        self.names[pack] = struct.Struct(code).pack
        return [*before, f"append({pack}({', '.join(arguments)}))", *after]


def _groups(fields: Sequence[Field]) -> list[list[int]]:
    """Return the groups of adjacent fixed-width fields, each up to a variable-width field."""
    found: list[list[int]] = [[]]
    for place, field in enumerate(fields):
        found[-1].append(place)
        if not field.code:
            found.append([])
    return [group for group in found if group]
