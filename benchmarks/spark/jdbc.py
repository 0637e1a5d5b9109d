"""Spark's own JDBC writer."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit


def append(df: Any, dsn: str, table: str, *, size: int, rewrite: bool) -> None:
    """Append the rows in batches of `size`, as statements of many VALUES if `rewrite`."""
    options = {
        **jdbc_options(dsn, "?reWriteBatchedInserts=true" if rewrite else ""),
        "dbtable": table,
        "batchsize": size,
        "driver": "org.postgresql.Driver",
    }
    df.write.format("jdbc").mode("append").options(**options).save()


def jdbc_options(dsn: str, query: str = "") -> dict[str, str]:
    """Return address and credentials in the form of JDBC."""
    parts = urlsplit(dsn)
    return {
        "url": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}{query}",
        "user": parts.username or "",
        "password": parts.password or "",
    }
