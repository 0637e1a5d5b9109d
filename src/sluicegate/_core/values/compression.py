"""Compression of request bodies and of files."""

from __future__ import annotations

import gzip


def compressed(content: bytes, compression: str | None) -> bytes:
    """Compress a body or a chunk of a file. Blocks for the duration."""
    if compression == "gzip":
        return gzip.compress(content, compresslevel=6, mtime=0)
    if compression == "zstd":
        import zstandard  # an optional dependency

        return zstandard.ZstdCompressor().compress(content)
    return content
