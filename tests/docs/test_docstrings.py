"""The examples in the docstrings of public names print the output shown."""

from __future__ import annotations

import doctest
import importlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.docs.test_reference import OTHERWISE
from tests.surface import PUBLIC

if TYPE_CHECKING:
    from pathlib import Path

LEAST = 19
"""Names with an example."""


def with_examples() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted({*PUBLIC} - {*OTHERWISE}):
        module = importlib.import_module(path)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if ">>>" in (getattr(value, "__doc__", None) or ""):
                found[name] = value
    return found


EXAMPLES = with_examples()


def test_the_main_names_have_one() -> None:
    assert len(EXAMPLES) >= LEAST


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (test,) = doctest.DocTestFinder(recurse=False).find(EXAMPLES[name], name, globs={})
    told: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    assert result.attempted
    assert not result.failed, "".join(told)
