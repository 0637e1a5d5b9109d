"""Connections to PostgreSQL: where and how, statements, answers, errors."""

from ..._core.public import publish_all
from .access import Password, PostgresAccess

__all__ = ["Password", "PostgresAccess"]

publish_all(__name__, "sluicegate.postgres")
