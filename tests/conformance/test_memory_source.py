"""O-T23, consumer/C:N7: the suite of sources, on the memory source."""

from __future__ import annotations

import pytest
from tests.conformance.source_help import MemorySourceSuite

from penstock.testing.conformance import SourceConformance


class TestMemorySource(MemorySourceSuite):
    """On virtual time."""


@pytest.mark.soak
class TestMemorySourceInRealTime(MemorySourceSuite):
    """As a source with a broker runs it."""

    clock = SourceConformance.clock
