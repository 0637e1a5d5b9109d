"""Rows and columns to tables of ClickHouse, over HTTP."""

from .._core.public import publish_all
from .sink import ClickHouseSink

__all__ = ["ClickHouseSink"]

publish_all(__name__, "sluicegate.clickhouse")
