"""Rows and columns to tables of ClickHouse, over HTTP."""

from .._core.public import publish_all
from .errors import ClickHouseError
from .sink import ClickHouseSink

__all__ = ["ClickHouseError", "ClickHouseSink"]

publish_all(__name__, "sluicegate.clickhouse")
