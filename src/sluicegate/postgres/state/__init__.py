"""The state of partitions in a table."""

from ..._core.public import publish_all
from .state import PostgresState

__all__ = ["PostgresState"]

publish_all(__name__, "sluicegate.postgres")
