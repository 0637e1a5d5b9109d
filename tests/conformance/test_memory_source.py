"""O-T23, consumer/C:N7: the suite of sources, on the memory source."""

from __future__ import annotations

from tests.conformance.source_help import MemorySourceSuite


class TestMemorySource(MemorySourceSuite):
    """As it is."""
