"""Trying again: what, when, and how long for."""

from .._core.classify import classify_network
from .._core.errors import ErrorClass
from .._core.public import publish
from .backoff import Backoff
from .breaker import BreakerSink, CircuitBreaker
from .circuit import CircuitState
from .retry import Retry

__all__ = ["Backoff", "BreakerSink", "CircuitBreaker", "CircuitState", "ErrorClass", "Retry", "classify_network"]

publish(__name__, Backoff, BreakerSink, CircuitBreaker, CircuitState, Retry, classify_network)
