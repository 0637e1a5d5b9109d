"""The places of keys in a TOML text: every key that `tomllib` finds has the right line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.spark.pipeline.reading import locate

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"

ODD = '''
a.b = 1   # a comment with "quotes" and = and [brackets]
"a key" = { x = 1, "y.z" = [1, { deep = true }] }
text = """
[not.a.table]
k = "v" \\"""
"""
other = \'\'\'
x = ''
\'\'\'
when = 1979-05-27 07:32:00
floats = [1.5, 2e3,   # two

  3.0,
]

[table]
k = 1
[table.inner."quoted.name"]
k = 2
[[list]]
k = 3
[[list]]
k = 4
[list.of]
k = 5
[[list.more]]
k = 6
'''


def paths(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    found = {path} if path else set()
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return found.union(*(paths(each, (*path, name)) for name, each in inner))


def test_every_key_has_its_line() -> None:
    lines = locate(ODD)
    assert set(lines) == paths(tomllib.loads(ODD))
    text = ODD.splitlines()
    assert {path: text[line - 1].strip() for path, line in lines.items() if path[-1] == "k"} == {
        ("table", "k"): "k = 1",
        ("table", "inner", "quoted.name", "k"): "k = 2",
        ("list", 0, "k"): "k = 3",
        ("list", 1, "k"): "k = 4",
        ("list", 1, "of", "k"): "k = 5",
        ("list", 1, "more", 0, "k"): "k = 6",
    }
    assert text[lines["floats", 2] - 1].strip() == "3.0,"
    assert lines["a key", "y.z", 1, "deep"] == lines[("a key",)] == 3


def test_the_examples_are_found_whole() -> None:
    files = sorted(EXAMPLES.glob("*.toml"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert set(locate(text)) == paths(tomllib.loads(text))


names = st.sampled_from(["a", "b-c", '"d.e"', "'f g'", '"\\u0041"'])
scalars = st.sampled_from(
    [
        "1",
        "-1.5",
        "true",
        '"x # = ["',
        "'\\'",
        "1979-05-27T07:32:00Z",
        '"""\n[x]\n"""',
        "'''a\n'b'\n'''",
    ]
)


def listed(parts: list[str]) -> str:
    return "[\n " + ", # c\n".join(parts) + "\n]"


values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(listed), max_leaves=4)
pairs = st.tuples(st.lists(names, min_size=1, max_size=2), values).map(
    lambda pair: f"{' . '.join(pair[0])} = {pair[1]}"
)
headers = st.lists(names, min_size=1, max_size=3).map(lambda parts: f"[{'.'.join(parts)}]")
lists = headers.map(lambda header: f"[{header}]")


@given(st.lists(st.one_of(pairs, headers, lists, st.just("# [c]")), max_size=12).map("\n".join))
@example("")
def test_whatever_tomllib_reads_is_found(text: str) -> None:
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(locate(text)) == paths(value)
