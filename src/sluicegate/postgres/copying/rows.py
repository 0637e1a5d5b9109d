"""Rows of Python values as binary `COPY`, by a function that is generated per table.

Adjacent fixed-width values are packed together, with the length of the value after them. For
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

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .fields import FIELDS, GIVEN, Declined
from .wire import HEADER, TRAILER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .fields import Field

PIECE = 1 << 16
"""Approximate size of a piece, in bytes."""
FIRST_ROWS = 256
"""Number of rows in the first piece; its size determines the number of rows in the next."""


class RowEncoder:
    """Encodes rows for columns of given types."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.gain = sum(field.gain for field in fields)
        """Additional nanoseconds that asyncpg needs per row."""
        self._pack = _generated(fields)

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


def _generated(fields: Sequence[Field]) -> Callable[[Sequence[Any], Callable[[bytes], Any]], None]:
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
        lines += [f"    {line}" for line in self._packed(f"pack{number}", group, is_first=is_first)]
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
            *(f"    {line}" for line in self._packed(f"single{place}", [place], is_first=False)),
            "    return b''.join(out)",
        ]

    def _packed(self, pack: str, group: Sequence[int], *, is_first: bool) -> list[str]:
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
