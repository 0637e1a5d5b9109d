"""The folder of the modules that `sluicegate tune` loads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from tests.cli.tune_help import PROGRAM

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the modules `tuned` (of `tune_help`) and `broken`."""
    (tmp_path / "tuned.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("sink = (")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tuned", raising=False)
    return tmp_path
