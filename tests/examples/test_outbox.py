"""The page on the outbox: its program runs on a database, and prints what the page says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest

    from penstock.testing import EmbeddedPostgres


def test_messages_leave_only_with_their_orders(
    embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """One refused by the database has none."""
    asyncio.run(load("outbox").main(embedded_postgres.dsn))
    assert [capsys.readouterr().out] == printed_on("how-to/keep-an-outbox.md")
