from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.streams.log_help import Log, installed

if TYPE_CHECKING:
    from penstock.testing import EmbeddedPostgres


@pytest.fixture
def log(embedded_postgres: EmbeddedPostgres) -> Log:
    """A new schema with streams and queues."""
    return installed(embedded_postgres.dsn)
