"""Rows and columns to tables of ClickHouse, over HTTP."""

from ..._core.public import publish
from .errors import ClickHouseError
from .sink import ClickHouseSink

__all__ = ["ClickHouseError", "ClickHouseSink"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
