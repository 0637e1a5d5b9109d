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
    """Where a child's server lives; other users may enter it, since root's servers run as somebody
    else.
    """
    path = Path(tempfile.mkdtemp(prefix="penstock-demo-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)
