"""Rows to tables of SQL databases, through SQLAlchemy.

Provisional: its public names may change in a minor release.

- `sink`, and `writer`: one write, whose rows are grouped by `batch`.
- `rows`: rows in the driver's form; `values`: what columns take; `order`: the order of keys.
- `plan`: an open table and its statements; `dialects`: the databases; `engine`, `pooled`:
  connections; `errors`: the classes of errors.
"""

from .._core.public import publish_all
from .sink import SqlSink

__all__ = ["SqlSink"]

publish_all(__name__, "sluicegate.sql")
