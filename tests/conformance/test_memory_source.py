"""O-T23, consumer/C:N7: the conformance suite of sources, on the memory source."""

from __future__ import annotations

import pytest
from tests.conformance.source_help import MemorySourceSuite

from sluicegate.testing.conformance import SourceConformance


class TestMemorySource(MemorySourceSuite):
    """On virtual time."""


@pytest.mark.soak
class TestMemorySourceInRealTime(MemorySourceSuite):
    """Like a source with a broker."""

    clock = SourceConformance.clock
