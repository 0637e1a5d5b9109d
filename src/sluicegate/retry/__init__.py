"""Retries: decorator, backoff, budget, circuit breaker."""

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
