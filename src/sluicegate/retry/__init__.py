"""Retries: decorator, backoff, budget, circuit breaker."""

from .._core.classify import classify_network, first_of
from .._core.errors import ErrorClass
from .._core.public import publish, publish_all
from .backoff import Backoff, RetryBudget, WaitStrategy
from .breaker import BreakerSink, CircuitBreaker
from .circuit import CircuitState
from .retry import Retry

__all__ = [
    "Backoff",
    "BreakerSink",
    "CircuitBreaker",
    "CircuitState",
    "ErrorClass",
    "Retry",
    "RetryBudget",
    "WaitStrategy",
    "classify_network",
    "first_of",
]

publish("sluicegate", Backoff, CircuitBreaker, CircuitState, Retry, RetryBudget)
publish_all(__name__)
