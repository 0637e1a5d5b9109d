"""Folders: of a demo's servers, and of the modules that `sluicegate tune` loads."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.tune_help import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder of a child's server; other users may enter it, because servers started by root run
    as another user.
    """
    path = Path(tempfile.mkdtemp(prefix="sluicegate-demo-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the modules `tuned` (of `tune_help`) and `broken`."""
    (tmp_path / "tuned.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("sink = (")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tuned", raising=False)
    return tmp_path
