"""Retries: decorator, backoff, budget, circuit breaker.

`retry` is the decorator and `retrying` the sink that it creates: one batch with its waits is in
`batch_retry`. Pure decisions: `series` (which items stay), `outage` (the state that batches share),
`search` (items that are refused alone). `failures` applies a failed try to all three; `backoff` has
the budget and tenacity's predicates. `breaker` is a sink around the state machine in `circuit`.
"""

from .._core.classify import classify_network, first_of
from .._core.public import publish, publish_all
from .backoff import RetryBudget
from .breaker import CircuitBreaker
from .circuit import CircuitState
from .retry import Retry

__all__ = [
    "CircuitState",
    "RetryBudget",
    "classify_network",
    "first_of",
]

publish("sluicegate", CircuitBreaker, Retry)
publish_all(__name__)
