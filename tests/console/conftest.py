"""The log of these tests."""

from tests.postgres.streams.log_pool import log

__all__ = ["log"]
