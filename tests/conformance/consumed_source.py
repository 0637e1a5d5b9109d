"""The conformance suite of sources, with tests of consumers on them."""

from __future__ import annotations

from tests.conformance.batch_tests import BatchTests
from tests.conformance.bound_tests import BoundTests
from tests.conformance.failure_tests import FailureTests
from tests.conformance.order_tests import OrderTests, RebalanceTests

from sluicegate.testing.conformance import SourceConformance


class OrderedSourceConformance(SourceConformance, OrderTests, RebalanceTests):
    """The suite of the sources of our guides: with order, restarts and rebalances."""


class ConsumedSourceConformance(OrderedSourceConformance, BoundTests, FailureTests, BatchTests):
    """The suite of our own sources: with bounds, failures and batches, too."""
