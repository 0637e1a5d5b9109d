"""PostgreSQL: where and how to connect."""

from .._clients.postgres.access import Password, PostgresAccess
from .._core.public import publish_all

__all__ = ["Password", "PostgresAccess"]

publish_all(__name__)
