"""Types of ClickHouse's columns, parsed from the server's text form.

`Nullable`, `LowCardinality` and `SimpleAggregateFunction` are wrappers: the type of a value is the
wrapped type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_WHOLE = re.compile(r"(U?)Int(8|16|32|64|128|256)")
_FIELD = re.compile(r"(`(?:[^`\\]|\\.)+`|[A-Za-z_][A-Za-z0-9_]*) (.+)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NULLS = frozenset({"Variant", "Dynamic", "Nothing"})


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column type. `head` is its name without arguments."""

    text: str
    head: str
    arguments: tuple[str, ...] = ()
    """The arguments as the server writes them, unless they are types."""
    inner: tuple[ColumnType, ...] = ()
    """The types of an array's elements, of a map's keys and values, or of a tuple's fields."""
    names: tuple[str, ...] = ()
    """The names of a tuple's fields; unnamed fields are numbered from 1."""
    is_nullable: bool = False

    @property
    def whole_numbers(self) -> range | None:
        """The range of an integer type; `None` for any other type."""
        found = _WHOLE.fullmatch(self.head)
        if found is None:
            return None
        bits = int(found[2])
        return range(2**bits) if found[1] else range(-(2 ** (bits - 1)), 2 ** (bits - 1))

    @property
    def scale(self) -> int:
        """Digits after the decimal point, of decimals and of times."""
        numbers = [int(each) for each in self.arguments if each.isdigit()]
        if self.head == "Decimal":
            return numbers[1] if len(numbers) > 1 else 0
        return numbers[0] if numbers else 0

    @property
    def precision(self) -> int:
        """Total digits of a decimal."""
        return int(self.arguments[0])


def parsed(text: str) -> ColumnType:
    """Parse a type. Never raises: an unknown type is a head without parts."""
    text = text.strip()
    head, paren, rest = text.partition("(")
    if not paren or not rest.endswith(")"):
        return ColumnType(text, text, is_nullable=text in _NULLS)
    arguments = _arguments(rest[:-1])
    match head:
        case "Nullable":
            return replace(parsed(arguments[0]), text=text, is_nullable=True)
        case "LowCardinality" | "SimpleAggregateFunction":
            return replace(parsed(arguments[-1]), text=text)
        case "Array" | "Map":
            return ColumnType(text, head, inner=tuple(map(parsed, arguments)))
        case "Tuple":
            fields = [_field(each, place) for place, each in enumerate(arguments, 1)]
            names = tuple(name for name, _ in fields)
            return ColumnType(text, head, inner=tuple(kind for _, kind in fields), names=names)
        case _:
            return ColumnType(text, head, tuple(arguments), is_nullable=head in _NULLS)


def _field(text: str, place: int) -> tuple[str, ColumnType]:
    found = _FIELD.fullmatch(text)
    if found is None:
        return str(place), parsed(text)
    name = found[1]
    if name.startswith("`"):
        name = _ESCAPED.sub(r"\1", name[1:-1])
    return name, parsed(found[2])


def _arguments(text: str) -> list[str]:
    """Split at the commas outside parentheses and quotes."""
    found: list[str] = []
    depth, start, quote, place = 0, 0, "", 0
    while place < len(text):
        each = text[place]
        if quote:
            if each == "\\":
                place += 1
            elif each == quote:
                quote = ""
        elif each in "'`":
            quote = each
        elif each in "()":
            depth += 1 if each == "(" else -1
        elif each == "," and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
        place += 1
    found.append(text[start:].strip())
    return found
