"""Rows and columns in the binary format of `COPY`.

- `wire`: the format; `rows`: from Python values, by the extension `_rows`; `columns`: from Arrow,
  laid out by `layout`.
"""
