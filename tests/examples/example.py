"""The example programs as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> Any:
    """The program `examples/NAME.py`, imported but not run."""
    spec = importlib.util.spec_from_file_location(name.replace("/", "."), EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
