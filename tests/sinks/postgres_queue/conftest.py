"""The log of these tests."""

from tests.streams.log_pool import log

__all__ = ["log"]
