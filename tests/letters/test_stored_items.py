"""The item of a letter: plain JSON of any Python value, and the value that is read back.

White box: the storing and restoring of an item, without a store.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
import uuid
from decimal import Decimal
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.dlq_help import record
from tests.properties import examples

from sluicegate import PermanentError
from sluicegate._core.values.encoding import all_to_json
from sluicegate.letters.items import DEEPEST, LONGEST, MARKED, PLAIN, REPR, restored, stored
from sluicegate.letters.letter import letter_of

EXACT = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**700).map(lambda number: -number),
    st.floats(),
    st.text(st.characters(codec=None, categories=None)),
    st.binary(),
)
"""Values that are read back unchanged."""
LEAVES = st.one_of(
    EXACT,
    st.datetimes(),
    st.decimals(),
    st.uuids(),
    st.complex_numbers(),
    st.builds(object),
    st.builds(SimpleNamespace, a=EXACT),
    st.frozensets(st.integers()),
)


def nested(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> Any:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner)),
        max_leaves=12,
    )


KEYS = st.one_of(
    st.text(st.characters(codec=None, categories=None)),
    st.sampled_from(["$repr", "$base64", "$mapping"]),
    st.integers(),
    st.none(),
    st.tuples(st.integers(), st.text()),
)


def read_back(item: object) -> Any:
    """The letter of an item, from its line in a file; its row in a table is the same."""
    (line,) = all_to_json([record(1, item=item)])
    row = dict(zip(record(1).COLUMNS, record(1, item=item).as_row(), strict=True))
    found = json.loads(line)
    assert json.loads(row["item"]) == found["item"]
    assert row["item_form"] == found["item_form"]
    return letter_of(found)


@given(nested(EXACT, KEYS))
@examples(40, long=200)
def test_exact_values_read_back_as_they_were(item: Any) -> None:
    """Compared by `repr`, so that NaN equals itself, and 1 is neither 1.0 nor True."""
    letter = read_back(item)
    assert letter.replayable
    assert repr(letter.original()) == repr(item)


@given(nested(LEAVES, st.one_of(KEYS, st.dates(), st.uuids(), st.builds(object))))
@examples(40, long=200)
def test_any_value_makes_a_letter(item: Any) -> None:
    letter = read_back(item)
    assert letter.replayable is (letter.item_form != REPR)
    if letter.replayable:
        letter.original()
    else:
        with pytest.raises(PermanentError, match="known only by its repr"):
            letter.original()


class Unshown:
    def __repr__(self) -> str:
        raise SystemError("no repr")


class Growing(list[Any]):
    """A list that another thread appends to while it is read."""

    def __iter__(self) -> Any:
        for each in range(10**9):
            if each > 5:
                raise RuntimeError("changed during iteration")
            yield each


def cycle() -> list[Any]:
    made: list[Any] = [1]
    made.append({"again": made})
    return made


def deep(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels - 1):
        made = [made]
    return made


class Model(pydantic.BaseModel):
    data: bytes
    word: str


class Other:
    pass


class Anything:
    """Has every attribute, like a mock."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any) -> Any:
        return self

    def __repr__(self) -> str:
        return "<anything>"


class Raising:
    __slots__ = ("value",)

    def __getattribute__(self, name: str) -> Any:
        raise LookupError(name)

    def __repr__(self) -> str:
        return "<raising>"


ODD: dict[str, tuple[Any, Any]] = {
    "an object without attributes": (Unshown(), "<Unshown, whose repr raised SystemError>"),
    "one within": ({"a": 1, "b": [Unshown()]}, None),
    "a lock": (threading.Lock(), None),
    "a class": (Unshown, f"<class '{__name__}.Unshown'>"),
    "a function": (len, "<built-in function len>"),
    "an exception": (ValueError("no"), "ValueError('no')"),
    "a cycle": (cycle(), None),
    "a deep list": (deep(DEEPEST + 2), None),
    "a very deep list": (deep(sys.getrecursionlimit() * 3), None),
    "a list that changes": (Growing(), "[]"),
    "a complex number": (1j, "1j"),
    "an object with any attribute": (Anything(), "<anything>"),
    "an object whose attribute raises": (Raising(), "<raising>"),
    "a long repr": (SimpleNamespace, None),
}


@pytest.mark.parametrize("name", ODD)
def test_what_has_no_form_is_kept_as_its_repr(name: str) -> None:
    item, shown = ODD[name]
    letter = read_back(item)
    assert letter.item_form == REPR
    if shown is not None:
        assert letter.item == {"$repr": shown}


def test_the_rest_of_the_item_stays_readable() -> None:
    held = {"id": 1, "when": dt.date(2026, 1, 31), "what": Other, "raw": b"\xff"}
    assert read_back(held).item == {
        "id": 1,
        "when": "2026-01-31",
        "what": {"$repr": f"<class '{__name__}.Other'>"},
        "raw": {"$base64": "/w=="},
    }


class Account(pydantic.BaseModel):
    name: str
    passwords: list[pydantic.SecretStr]


def test_a_model_with_a_secret_is_never_sent_again_with_asterisks() -> None:
    account = Account(name="ann", passwords=[pydantic.SecretStr("hidden")])
    item, form = stored({"account": account})
    assert item == {"account": {"name": "ann", "passwords": ["**********"]}}
    assert form == REPR


def test_a_repr_is_cut() -> None:
    class Long:
        def __repr__(self) -> str:
            return "x" * (LONGEST + 1)

    assert stored(Long()).value == {"$repr": "x" * LONGEST}


@pytest.mark.parametrize(
    ("item", "value", "form"),
    [
        (deep(DEEPEST), deep(DEEPEST), PLAIN),
        ({"a": (1, dt.timedelta(1))}, {"a": [1, "P1DT0S"]}, PLAIN),
        ("a\0b", "a\0b", PLAIN),
        (b"ab", {"$base64": "YWI="}, MARKED),
        ("\ud800", {"$text": "\\ud800"}, MARKED),
        ([inf, -inf, nan], [{"$float": "inf"}, {"$float": "-inf"}, {"$float": "nan"}], MARKED),
        (2**3000, {"$int": hex(2**3000)}, MARKED),
        ({1: "a", "1": "b"}, {"$mapping": [[1, "a"], ["1", "b"]]}, MARKED),
        ({"$int": "0x1"}, {"$mapping": [["$int", "0x1"]]}, MARKED),
        (Model(data=b"text", word="a"), {"data": "text", "word": "a"}, PLAIN),
        (
            Model(data=b"\xff", word="a"),
            {"data": {"$base64": "/w=="}, "word": "a"},
            MARKED,
        ),
        ([Decimal("1.10"), uuid.UUID(int=1)], ["1.10", str(uuid.UUID(int=1))], PLAIN),
    ],
)
def test_the_form_of_an_item(item: Any, value: Any, form: str) -> None:
    assert stored(item) == (value, form)


def test_the_letter_shares_nothing_with_the_item() -> None:
    item = {"list": [1]}
    kept = stored(item).value
    item["list"].append(2)
    assert kept == {"list": [1]}


@pytest.mark.parametrize(
    "mark",
    [
        {"$base64": 1},
        {"$base64": "?"},
        {"$int": "x"},
        {"$float": None},
        {"$text": "é"},
        {"$mapping": [1]},
        {"$mapping": [[{"$mapping": []}, 1]]},
        {"$repr": "x"},
    ],
)
def test_a_wrong_mark_is_an_error(mark: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        restored([mark])


def test_texts_that_utf_8_or_a_table_cannot_hold_are_escaped() -> None:
    made = record(1, batcher="b\udc80", item_key="k\0\udc80", message="m\0", tenant=("a", 1.5, 1j))
    (line,) = all_to_json([made])
    assert letter_of(json.loads(line)).batcher == "b\\udc80"
    row = dict(zip(made.COLUMNS, made.as_row(), strict=True))
    assert (row["item_key"], row["message"]) == ("k\\x00\\udc80", "m\\x00")
    assert row["tenant"] == '["a",1.5,{"$repr":"1j"}]'
