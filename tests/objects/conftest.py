"""The stores of these tests."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests.object_servers import ObjectServer, azurite, minio, object_store, s3
from tests.objects.object_help import Bucket, Folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["azurite", "minio", "object_store", "s3"]

_numbers = itertools.count(1)


@pytest.fixture
def bucket(object_store: ObjectServer) -> Bucket:
    """A new bucket of each server."""
    return Bucket(object_store, f"bucket-{next(_numbers)}")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A new folder."""
    return Folder(tmp_path)
