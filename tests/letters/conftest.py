"""The servers of these tests."""

from tests.object_servers import s3

__all__ = ["s3"]
