"""Kills at random moments, from seeds, at every delivery level: nothing is lost, and nothing doubled that is promised once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from tests.seeds import run_by

from penstock.testing import EmbeddedUnavailable, embedded_postgres, skip_or_fail

from .kills import Killed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing import EmbeddedPostgres

SAMPLE = 8
SOAK = 170


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """One of the module's own, durable, to be killed."""
    try:
        context = embedded_postgres()
        server = context.__enter__()
    except EmbeddedUnavailable as error:
        skip_or_fail("postgres", str(error))
    yield server
    context.__exit__(None, None, None)


def notes(server: EmbeddedPostgres) -> Path:
    """A new folder that the server's user can change too."""
    folder = Path(tempfile.mkdtemp(prefix="notes-", dir=server._folder.path))
    folder.chmod(0o777)
    return folder


def run(spark: Any, server: EmbeddedPostgres, seed: int) -> Killed:
    killed = Killed(seed, (server.dsn, server._data), notes(server))
    with run_by(f"pytest -m '' -k 'test_a_kill and {seed}-'"):
        killed.prepare()
        killed.finish(spark, server)
    return killed


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_a_kill_at_a_random_moment_changes_no_row(spark: Any, server: EmbeddedPostgres, seed: int) -> None:
    run(spark, server, seed)
