"""The documentation states the effect of each outcome on a record and its position."""

from __future__ import annotations

import pytest
from outcomes import on_the_page, table


@pytest.mark.long
def test_the_table_of_outcomes_is_made_from_runs() -> None:
    """Rewrite it with `PYTHONPATH=src python tests/flow/outcomes.py write`."""
    assert on_the_page() == table()
