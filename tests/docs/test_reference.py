"""The reference describes each public name once, and nothing else."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path

from tests.surface import PUBLIC

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "api"
OTHERWISE = {
    "pyspark_sluicegate": "where Spark looks for data sources; programs never import it",
}


def described() -> list[str]:
    return [
        name
        for page in sorted(PAGES.glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


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


def test_only_public_names_are_described() -> None:
    assert {*described()} - public() == set()
