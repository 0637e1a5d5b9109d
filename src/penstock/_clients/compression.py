"""Compression of request bodies and of files."""

from __future__ import annotations

import gzip


def compressed(content: bytes, compression: str | None) -> bytes:
    """A body as it is sent. Blocks for as long as compressing takes."""
    if compression == "gzip":
        return gzip.compress(content, compresslevel=6, mtime=0)
    if compression == "zstd":
        import zstandard  # an optional dependency

        return zstandard.ZstdCompressor().compress(content)
    return content
