"""A turn here takes no time, and collecting the suite's garbage before each would take a second."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)
