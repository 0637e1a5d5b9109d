"""The conformance suite of sources, with the bounds, failures and batches of consumers on them."""

from __future__ import annotations

from tests.conformance.batch_tests import BatchTests
from tests.conformance.bound_tests import BoundTests
from tests.conformance.failure_tests import FailureTests

from sluicegate.testing.conformance import SourceConformance


class ConsumedSourceConformance(SourceConformance, BoundTests, FailureTests, BatchTests):
    """The suite of our own sources."""
