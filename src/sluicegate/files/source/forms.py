"""Determines the formats of files, by their names."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..._core.errors import ConfigError
from ..._core.extras import need

Format = Literal["ndjson", "csv", "parquet"]
Compression = Literal["gzip", "zstd"]

_COMPRESSED: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_FORMATS: dict[str, Format] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".csv": "csv",
    ".parquet": "parquet",
}


class Form(NamedTuple):
    """The format and the compression of a file."""

    format: Format
    compression: Compression | None = None


def form_of(path: str, wanted: Format | None) -> Form:
    """Determine the form of a file by its name and the requested format.

    Raises `ConfigError` if the name has no known suffix, and `MissingExtra` if a required package
    is not installed.
    """
    ending = path[path.rfind(".") :].lower() if "." in path else ""
    compression = _COMPRESSED.get(ending)
    bare = path[: -len(ending)] if compression else path
    told = _FORMATS.get(bare[bare.rfind(".") :].lower()) if "." in bare else None
    chosen = wanted or told
    if chosen is None:
        raise ConfigError(
            f"{path}: its name has no suffix of a known format. Pass format= for all files, or a pattern such as "
            '"*.ndjson" for some'
        )
    if chosen == "parquet":
        need_pyarrow()
        return Form("parquet")
    if compression == "zstd":
        need("zstandard", "files", f"{path!r}, which is compressed with zstd,")
    return Form(chosen, compression)


def need_pyarrow() -> None:
    """Raise `MissingExtra` without pyarrow."""
    need("pyarrow", "parquet", 'a FileSource with format="parquet"')
