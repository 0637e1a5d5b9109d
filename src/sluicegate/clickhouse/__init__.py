"""Rows and columns to ClickHouse tables, over HTTP.

Provisional: its public names may change in a minor release.

- `sink`; `table`: the open table, compared with what `server` reads.
- `values`: the values that columns store exactly; `arrow`: batches as Arrow.
- `errors`: exceptions by their code.
"""

from .._core.public import publish_all
from .sink import ClickHouseSink

__all__ = ["ClickHouseSink"]

publish_all(__name__, "sluicegate.clickhouse")
