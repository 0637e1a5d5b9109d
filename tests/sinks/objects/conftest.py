"""The stores of these tests."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests.s3_server import S3Server, s3_server
from tests.sinks.objects.object_help import Bucket, Folder

from penstock.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """One server for all tests. Skips without moto, unless `PENSTOCK_REQUIRE` names `s3`."""
    with there_or_skip("s3", s3_server()) as server:
        yield server


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
