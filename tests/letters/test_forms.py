"""The JSON form of every type that files, requests and letters support.

White box: the encoding alone.
"""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import json
import subprocess
import sys
from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import PurePosixPath
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate._core.values.encoding import all_to_json, to_json


class Colour(enum.Enum):
    RED = ("r", 1)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    GOOD = "good"


class OldWord(str, enum.Enum):  # noqa: UP042  # what applications still have
    BAD = "bad"


class Pair(NamedTuple):
    a: int
    b: Any


class Text(str):
    __slots__ = ()


class Counted(dict[str, int]):
    pass


@dataclass
class Empty:
    pass


@dataclass(slots=True)
class Leaf:
    n: int
    _private: int = field(default=0, repr=False)


@dataclass
class Tree:
    leaf: Leaf
    pairs: list[Pair]


class Inner(pydantic.BaseModel):
    n: int = pydantic.Field(alias="N")
    secret: str = pydantic.Field(default="hidden", exclude=True)


class Outer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=True, extra="allow")
    inner: Inner
    when: dt.datetime
    password: pydantic.SecretStr
    level: Level

    @pydantic.field_serializer("level")
    def _level(self, level: Level) -> str:
        return level.name


class Whole(pydantic.RootModel[list[int]]):
    pass


@attrs.define
class Attrs:
    leaf: Leaf
    _private: int = 1


class Struct(msgspec.Struct, rename={"n": "N"}, tag="struct"):
    n: int
    inner: Any = None


NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
FORMS: dict[str, tuple[Any, Any]] = {
    "mapping proxy": (MappingProxyType({"a": 1}), {"a": 1}),
    "another mapping": (UserDict({"a": OrderedDict(b=1)}), {"a": {"b": 1}}),
    "dict subclass": (Counted(a=1), {"a": 1}),
    "dataclass": (Tree(Leaf(1), [Pair(1, Leaf(2))]), {"leaf": {"n": 1, "_private": 0}, "pairs": [[1, {"n": 2, "_private": 0}]]}),
    "empty dataclass": (Empty(), {}),
    "named tuple": (Pair(1, {"c": Pair(2, 3)}), [1, {"c": [2, 3]}]),
    "namespace": (SimpleNamespace(a=SimpleNamespace()), {"a": {}}),
    "pydantic": (
        Outer(inner=Inner(N=1), when=NOON, password=pydantic.SecretStr("p"), level=Level.LOW, more=Leaf(1)),  # type: ignore[call-arg]  # extra fields are allowed
        {"inner": {"n": 1}, "when": "2026-01-31T12:00:00Z", "password": "**********", "level": "LOW", "more": {"n": 1, "_private": 0}},
    ),
    "pydantic root": (Whole([1, 2]), [1, 2]),
    "pydantic within": ({"a": [Inner(N=1)]}, {"a": [{"n": 1}]}),
    "attrs": (Attrs(Leaf(1)), {"leaf": {"n": 1, "_private": 0}, "_private": 1}),
    "msgspec": (Struct(1, Struct(2)), {"n": 1, "inner": {"n": 2, "inner": None}}),
    "set": ({3, 1, 2}, [1, 2, 3]),
    "frozen set of both": (frozenset({"a"}), ["a"]),
    "tuple": ((1, (2,)), [1, [2]]),
    "datetime": (NOON, "2026-01-31T12:00:00+00:00"),
    "date": (NOON.date(), "2026-01-31"),
    "time": (dt.time(1, 2, 3), "01:02:03"),
    "timedelta": (dt.timedelta(days=1, seconds=2, microseconds=30), "P1DT2.000030S"),
    "negative timedelta": (dt.timedelta(seconds=-90), "-P0DT90S"),
    "UUID": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "Decimal": (Decimal("1.10"), "1.10"),
    "enum": (Colour.RED, ["r", 1]),
    "int enum": (Level.LOW, 1),
    "str enum": ([Word.GOOD, {Word.GOOD: OldWord.BAD}], ["good", {"good": "bad"}]),
    "str subclass": (Text("a"), "a"),
    "path": (PurePosixPath("/a/b"), "/a/b"),
    "address": (ipaddress.ip_address("10.0.0.1"), "10.0.0.1"),
    "network": (ipaddress.ip_network("2001:db8::/32"), "2001:db8::/32"),
    "numbers as keys": ({2: "a", None: 2, True: 3}, {"2": "a", "null": 2, "true": 3}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_type_has_one_form(name: str) -> None:
    value, form = FORMS[name]
    alone, within = json.loads(to_json(value)), json.loads(to_json({"in": [value]}))
    assert (alone, within) == (form, {"in": [form]})


class Own:
    def __init__(self) -> None:
        self.id = 1


@pytest.mark.parametrize(
    "value", [b"a", bytearray(b"a"), Own(), object(), Own, {(1, 2): 3}, {Colour.RED: 1}, 1j]
)
def test_a_value_without_a_form_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        to_json({"in": value})


def test_a_model_that_breaks_its_own_types_warns_of_no_value(recwarn: Any) -> None:
    """A pydantic warning would quote it."""
    to_json(Inner.model_construct(n="secret"))  # pyright: ignore[reportArgumentType]
    assert [str(each.message) for each in recwarn] == []


@given(st.timedeltas(min_value=dt.timedelta(days=-(10**8)), max_value=dt.timedelta(days=10**8)))
def test_a_duration_is_one_of_iso_8601(value: dt.timedelta) -> None:
    """In the form that msgspec reads."""
    assert msgspec.json.decode(to_json(value), type=dt.timedelta) == value


def test_all_at_once_is_each_by_itself() -> None:
    values = [value for value, _ in FORMS.values()]
    assert all_to_json(values) == list(map(to_json, values))


def test_no_optional_package_is_loaded() -> None:
    program = (
        "import sys; from sluicegate._core.values.encoding import to_json; to_json({'a': {1}});"
        "print({'pydantic', 'attrs', 'attr', 'msgspec'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"
