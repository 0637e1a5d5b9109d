"""The browser of these tests."""

from __future__ import annotations

import pytest
from tests.console.browser.chromium import Chromium, chromium

from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers.require import skip_or_fail


@pytest.fixture(scope="session")
def program() -> Chromium:
    """Skips if Chromium is unavailable, unless `SLUICEGATE_REQUIRE` names it (`chromium`)."""
    try:
        return chromium()
    except EmbeddedUnavailable as error:
        skip_or_fail("chromium", str(error))
