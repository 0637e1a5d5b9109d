"""Connections to PostgreSQL: where and how, statements, answers, errors."""

from ..._core.public import publish_all
from .access import PostgresAccess

__all__ = ["PostgresAccess"]

publish_all(__name__, "sluicegate.postgres")
