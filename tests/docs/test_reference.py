"""The reference describes each public name once, and nothing else."""

from __future__ import annotations

import importlib
import re
from collections import Counter

from tests.annotations import signatures
from tests.surface import PUBLIC, described, not_exported

OTHERWISE = {
    "pyspark_sluicegate": "where Spark looks for data sources; programs never import it",
}

DETAILS = {"Enqueued", "PublishAck", "RecordMetadata", "StoredObject"}
"""The `detail` of a receipt, whose type is that of the sink."""


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


def test_only_public_names_and_types_of_their_signatures_are_described() -> None:
    """The reference also describes types that programs never import: of values that they receive, of
    functions that they pass, and the causes of errors.
    """
    types = {f"{module}.{name}" for module, name in not_exported()}
    assert {*described()} - public() == types
    words = {word for _, text, _ in signatures() for word in re.findall(r"\w+", text)}
    assert [
        f"{module}.{name}"
        for module, name in not_exported()
        if name not in words | DETAILS
        and not _is_error(getattr(importlib.import_module(module), name))
    ] == []


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Exception)
