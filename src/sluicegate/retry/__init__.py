"""Retries: decorator, backoff, budget, circuit breaker.

`retry` is the decorator and `retrying` the sink that it creates: one batch with its waits is in
`batch_retry`. Pure decisions: `series` (which items stay), `outage` (what batches share), `search`
(items that are refused alone). `failures` applies a failed try to all three; `backoff` has the
budget and the predicates of tenacity. `breaker` is a sink around the state machine in `circuit`.
"""

from .._core.classify import Classifier, classify_network, first_of
from .._core.errors import ErrorClass
from .._core.public import publish, publish_all
from .._core.retry_policy import Backoff
from .backoff import RetryBudget, TenacityPredicate, TenacityWait
from .breaker import BreakerSink, CircuitBreaker
from .circuit import CircuitState
from .retry import Retry

__all__ = [
    "Backoff",
    "BreakerSink",
    "CircuitBreaker",
    "CircuitState",
    "Classifier",
    "ErrorClass",
    "Retry",
    "RetryBudget",
    "TenacityPredicate",
    "TenacityWait",
    "classify_network",
    "first_of",
]

publish("sluicegate", Backoff, CircuitBreaker, Retry)
publish_all(__name__)
