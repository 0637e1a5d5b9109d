"""What subscriptions store in PostgreSQL: positions, advisory locks, parked records."""

from ..._core.public import publish_all
from .advisory import PostgresAdvisoryLocks
from .subscriptions import PostgresSubscriptions

__all__ = ["PostgresAdvisoryLocks", "PostgresSubscriptions"]

publish_all(__name__, "sluicegate.postgres")
