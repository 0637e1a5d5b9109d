"""The example programs as modules."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DOCS = ROOT / "docs"


def load(name: str) -> Any:
    """The program `examples/NAME.py`, imported but not run."""
    known_as = f"examples.{name.replace('/', '.')}"
    spec = importlib.util.spec_from_file_location(known_as, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[known_as] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def printed_on(page: str) -> list[str]:
    """The program output on the page: its blocks of plain text."""
    return re.findall(r"```text\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
