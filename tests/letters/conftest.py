"""The servers of these tests."""

from tests.s3_server import s3

__all__ = ["s3"]
