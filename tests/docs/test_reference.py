"""The reference describes each public name once, and nothing else."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from typing import TYPE_CHECKING

from tests.annotations import bound, signatures
from tests.surface import PAGES, PUBLIC, described, not_exported, surface

if TYPE_CHECKING:
    from collections.abc import Iterable

OTHERWISE = {
    "pyspark_sluicegate": "where Spark looks for data sources; programs never import it",
}

WITHOUT_ANNOTATION = {
    "Enqueued", "KeyFunction", "LogFigures", "PublishAck", "QueueFigures", "RecordMetadata",
    "StoredObject",
}  # fmt: skip
"""The `detail` of a receipt, whose type is that of its sink; a part of the type of
`JetStreamSource(key=)`; the figures of a monitor, a parameter of its base class.
"""


def public() -> set[str]:
    """Each name at its public home, from which programs import it."""
    names: set[str] = set()
    for path in sorted({*PUBLIC} - {*OTHERWISE}):
        module = importlib.import_module(path)
        for name in module.__all__ if hasattr(module, "__all__") else ():
            home = getattr(getattr(module, name), "__module__", path)
            names.add(f"{home if home in PUBLIC else path}.{name}")
    return names


def test_no_name_is_described_twice() -> None:
    assert [name for name, times in Counter(described()).items() if times > 1] == []


def test_each_public_name_is_described() -> None:
    missing = public() - {*described()}
    assert missing == set(), "add `::: name` to a page in docs/reference/api"


def test_provisional_packages_say_so() -> None:
    page = (PAGES.parents[1] / "explanation" / "stability.md").read_text()
    (listed,) = re.findall(r"^\| provisional \| ([^|]+) \|", page, re.M)
    told = {
        name for name in PUBLIC if "Provisional:" in (importlib.import_module(name).__doc__ or "")
    }
    assert told == {f"sluicegate{name}" for name in re.findall(r"`([^`]+)`", listed)}


def test_only_public_names_and_types_of_their_signatures_are_described() -> None:
    """The reference also describes types that programs never import: of values that they receive, of
    functions that they pass, and the causes of errors.
    """
    types = {f"{module}.{name}" for module, name in not_exported()}
    assert {*described()} - public() == types
    shown = _words(re.sub(r"^[\w.]+", "", line) for line in surface())
    shown |= _words(text for _, text, _ in signatures())
    shown |= _words(ast.unparse(alias) for alias in map(_alias, not_exported()) if alias)
    assert [
        f"{module}.{name}"
        for module, name in not_exported()
        if name not in shown | WITHOUT_ANNOTATION
        and not _is_error(getattr(importlib.import_module(module), name))
    ] == []


def _words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"\w+", text)}


def _alias(place: tuple[str, str]) -> ast.expr | None:
    """The definition of a type of functions or values; `None` for a class."""
    module, name = place
    value = bound(module).get(name)
    return value if isinstance(value, ast.expr) else None


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Exception)
