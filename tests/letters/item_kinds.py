"""The same item in every form that an application may use."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import msgspec
import pydantic
import pydantic.dataclasses

if TYPE_CHECKING:
    from collections.abc import Callable


class Named(NamedTuple):
    id: int
    word: str
    detail: Any


@dataclasses.dataclass
class Plain:
    id: int
    word: str
    detail: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    id: int
    word: str
    detail: Any


class Model(pydantic.BaseModel):
    id: int
    word: str = pydantic.Field(alias="Word")
    detail: Any


@pydantic.dataclasses.dataclass
class Checked:
    id: int
    word: str
    detail: Any


@attrs.define(slots=False)
class Attrs:
    id: int
    word: str
    detail: Any


@attrs.frozen
class SlottedAttrs:
    id: int
    word: str
    detail: Any


class Struct(msgspec.Struct, rename="upper", tag=True):
    id: int
    word: str
    detail: Any


class Own:
    def __init__(self, id: int, word: str, detail: Any) -> None:  # noqa: A002  # the column's name
        self.id = id
        self.word = word
        self.detail = detail
        self._private = object()


class OwnSlots:
    __slots__ = ("detail", "id", "word")

    def __init__(self, id: int, word: str, detail: Any) -> None:  # noqa: A002  # the column's name
        self.id = id
        self.word = word
        self.detail = detail


KINDS: dict[str, Callable[[int, str, Any], Any]] = {
    "dict": lambda n, word, detail: {"id": n, "word": word, "detail": detail},
    "mapping proxy": lambda n, word, detail: MappingProxyType(
        {"id": n, "word": word, "detail": detail}
    ),
    "dataclass": Plain,
    "slots dataclass": Slotted,
    "pydantic model": lambda n, word, detail: Model(id=n, Word=word, detail=detail),
    "pydantic dataclass": Checked,
    "attrs": Attrs,
    "slots attrs": SlottedAttrs,
    "msgspec struct": Struct,
    "namespace": lambda n, word, detail: SimpleNamespace(id=n, word=word, detail=detail),
    "named tuple": Named,
    "tuple": lambda n, word, detail: (n, word, detail),
    "list": lambda n, word, detail: [n, word, detail],
    "own class": Own,
    "own class with slots": OwnSlots,
}
BY_POSITION = frozenset({"named tuple", "tuple", "list"})
"""Kinds that are lists in JSON."""
WITHOUT_FORM = frozenset({"own class", "own class with slots"})
"""Kinds that only PostgreSQL and letters accept, through their attributes."""


def detail(number: int) -> dict[str, Any]:
    """A nested value, equal to its JSON."""
    return {"n": number, "deep": [{"x": None}, "é"]}


def items(word: str = "good") -> list[Any]:
    """An item of each kind; its number is its index in `KINDS`."""
    return [make(number, word, detail(number)) for number, make in enumerate(KINDS.values())]


def rows(word: str = "good") -> list[tuple[int, str, Any]]:
    """The rows of `items`."""
    return [(number, word, detail(number)) for number in range(len(KINDS))]


def documents(word: str = "good") -> dict[str, Any]:
    """The JSON of each kind that has one."""
    return {
        kind: list(row) if kind in BY_POSITION else dict(zip(Named._fields, row, strict=True))
        for kind, row in zip(KINDS, rows(word), strict=True)
        if kind not in WITHOUT_FORM
    }
