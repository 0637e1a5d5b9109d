"""Retries: decorator, backoff, budget, circuit breaker."""

from .._core.classify import classify_network, first_of
from .._core.errors import ErrorClass
from .._core.public import publish, publish_all
from .._core.retry_policy import Backoff
from .backoff import RetryBudget
from .breaker import CircuitBreaker
from .circuit import CircuitState
from .retry import Retry

__all__ = [
    "Backoff",
    "CircuitBreaker",
    "CircuitState",
    "ErrorClass",
    "Retry",
    "RetryBudget",
    "classify_network",
    "first_of",
]

publish("sluicegate", Backoff, CircuitBreaker, Retry)
publish_all(__name__)
