"""Records of statsd, and how they are packed into datagrams.

White box: the encoding of records, and the division into datagrams.
"""

from __future__ import annotations

import enum
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.udp.records import statsd
from sluicegate.udp.sink import pack

METRICS: list[tuple[Any, str]] = [
    ({"name": "page.views", "value": 1, "type": "c"}, "page.views:1|c"),
    ({"name": "fuel", "value": 0.5, "type": "g", "tags": None}, "fuel:0.5|g"),
    ({"name": "song", "value": 240, "type": "h", "sample_rate": 0.5}, "song:240|h|@0.5"),
    ({"name": "song", "value": Decimal("2.50"), "type": "ms", "sample_rate": 1}, "song:2.50|ms"),
    ({"name": "users", "value": "id 7", "type": "s"}, "users:id 7|s"),
    ({"name": "heap", "value": "+4", "type": "g"}, "heap:+4|g"),
    ({"name": "heap", "value": -10, "type": "g"}, "heap:-10|g"),
    (
        {"name": "u", "value": 1, "type": "d", "sample_rate": 0.1, "tags": {"a": "b", "c": None}},
        "u:1|d|@0.1|#a:b,c",
    ),
    ({"name": "u", "value": 1, "type": "c", "tags": ["env:prod", "new"]}, "u:1|c|#env:prod,new"),
    (SimpleNamespace(name="n", value=3, type="c"), "n:3|c"),
]


@pytest.mark.parametrize(("item", "record"), METRICS)
def test_a_metric_of_statsd(item: Any, record: str) -> None:
    assert statsd(item) == record


def each(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


METRIC_MISTAKES = [
    *each("name", "a:b", "a|b", "a\nb", "a\rb", "a@b", "", None, 5),
    *each("type", "x", None, "", [], "C"),
    *each("value", None, True, "5|c", "x", float("nan"), float("inf"), []),
    *each("sample_rate", 0, 1.5, -1, "0.5", True, float("nan")),
    *each("tags", "a:b", {"a,b": 1}, {"a:b": 1}, {"a": "b|c"}, {"a": "b\n"}, {5: "a"}, {"": "a"}),
    *each("tags", ["a,b"], ["a|b"], [""], [5], 5),
]


@pytest.mark.parametrize("change", METRIC_MISTAKES)
def test_what_breaks_the_lines_of_statsd_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        statsd({"name": "n", "value": 1, "type": "c", **change})


class Name(str, enum.Enum):  # noqa: UP042  # a StrEnum shows its content
    """An enumeration whose text is `Name.VIEWS`."""

    VIEWS = "page.views"


class Kind(str, enum.Enum):  # noqa: UP042
    GAUGE = "g"


class Level(enum.IntEnum):
    HIGH = 7


class Ratio(float):
    """Like `numpy.float64`, whose repr is `np.float64(0.5)`."""

    def __repr__(self) -> str:
        return f"Ratio({float(self)})"

    __str__ = __repr__


def test_subclasses_of_text_and_numbers_are_written_by_their_content() -> None:
    """The receiver would drop `n:Ratio(0.5)|g` silently, and count `Name.VIEWS` separately."""
    metric: dict[str, Any] = {
        "name": Name.VIEWS,
        "type": Kind.GAUGE,
        "tags": {Name.VIEWS: Name.VIEWS},
    }
    half = Ratio(0.5)
    assert statsd({**metric, "value": half}) == "page.views:0.5|g|#page.views:page.views"
    metric = {"name": "n", "value": Level.HIGH, "type": "g", "sample_rate": half}
    assert statsd(metric) == "n:7|g|@0.5"
    assert statsd({"name": "n", "value": Name.VIEWS, "type": "s"}) == "n:page.views|s"
    assert statsd({"name": "n", "value": 1, "type": "c", "tags": [Name.VIEWS]}).endswith(
        "#page.views"
    )


@given(st.lists(st.integers(1, 30)), st.integers(30, 100))
def test_records_are_packed_in_order_and_never_split(sizes: list[int], limit: int) -> None:
    records = [bytes([97 + number % 26]) * size for number, size in enumerate(sizes)]
    found = pack(range(len(records)), records, limit)
    assert [record for each in found for record in each.data.split(b"\n")] == (records or [])
    assert [index for each in found for index in each.indices] == [*range(len(records))]
    assert all(len(each.data) <= limit for each in found)
    for one, following in pairwise(found):  # the next record did not fit
        assert len(one.data) + 1 + len(records[following.indices[0]]) > limit
