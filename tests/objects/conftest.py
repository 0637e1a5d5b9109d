"""The stores of these tests."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests.objects.object_help import Bucket, Folder
from tests.s3_server import S3Server, s3

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["s3"]

_numbers = itertools.count(1)


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    """A new bucket."""
    name = f"bucket-{next(_numbers)}"
    s3.bucket(name)
    return Bucket(s3, name)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A new folder."""
    return Folder(tmp_path)
