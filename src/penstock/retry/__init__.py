"""Trying again: what, when, and how long for."""

from .._core.errors import ErrorClass
from .._core.public import publish
from .backoff import Backoff
from .classify import classify_network
from .retry import Retry

__all__ = ["Backoff", "ErrorClass", "Retry", "classify_network"]

publish(__name__, Backoff, Retry, classify_network)
