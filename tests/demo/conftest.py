"""The folder of a demo's servers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
