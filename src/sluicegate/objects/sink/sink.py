"""Items as JSON lines in objects of an object store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from ..._core import checks
from ..._core.batch import RowBatch
from ..._core.checks import bad
from ..._core.extras import need
from ..._core.keywords import takes
from ..._core.sink import Capabilities
from ..._core.values.encoding import compressed, encoded_items, ndjson
from .base import BatchObjects, ObjectBase, ObjectBody, ObjectOptions, object_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._core.batch import Batch
    from ..._core.sink import WriteResult

_SUFFIXES = {None: "ndjson", "gzip": "ndjson.gz", "zstd": "ndjson.zst"}
_CONTENT_TYPES = {
    None: "application/x-ndjson",
    "gzip": "application/gzip",
    "zstd": "application/zstd",
}


class ObjectSink(ObjectBase):
    """Writes each batch as an object of JSON lines to S3, Google Cloud Storage, Azure or a folder.

    An object appears completely or not at all, and its items are delivered once the store has
    confirmed it. Its name is a digest of the batch and its bytes, so a repeated write replaces its
    own object: a retry leaves no duplicates if `encode` returns the same bytes. Since a batch is
    one object, the batcher's `Limits` (`max_items`, `max_bytes`, `max_delay`) determine the size
    and age of objects.

    Args:
        url: `"s3://bucket/folder"`, `"gs://bucket/folder"`, `"az://account/container/folder"`,
            `"file:///folder"` (existing), or a function that returns an obstore store.
        encode: a function from an item to its line, as text or bytes without a newline. Default:
            JSON, as for `FileSink`.
        compression: `"gzip"`, or `"zstd"`; default: none.
        partition_by: the fields that divide a batch into objects, in folders such as
            `day=2026-01-31/`, or a mapping from the folders' names to fields or functions of an
            item. Values are text, whole numbers, bools, dates or `None`.
        prefix: the beginning of each object's name; default `"part"`.
        manifest: whether each write ends with an object in `_manifests/` that lists the write's
            objects; the items are delivered after that.
        concurrency: number of concurrent uploads; default 8. An object above 8 MiB is sent in
            parts, four at a time.
        timeout: seconds for each request; default 30. At most half of it, and at most 5, are for
            connecting.
        close_timeout: seconds for which a cancelled upload continues, so that it leaves no hidden
            parts; default 5.
        config: the store's options, with obstore's names, such as `region`, `endpoint`,
            `access_key_id` and `secret_access_key`; default: the environment's. Never shown.
        client_options: options of obstore's HTTP client, such as `proxy_url`. Never shown.

    Raises `ConfigError` for a bad argument and `MissingExtra` without obstore or, for `"zstd"`,
    zstandard. Constructing does not suspend. Opening connects to nothing, so a missing bucket or
    permission is found at the first write, as `RefusedError`.
    """

    @takes(ObjectOptions, object_settings)
    def __init__(
        self,
        url: str | Callable[[], Any],
        *,
        encode: Callable[[Any], bytes | str] | None = None,
        compression: Literal["gzip", "zstd"] | None = None,
        **options: Unpack[ObjectOptions],
    ) -> None:
        rule = "must be a function of an item that returns a line as text or bytes"
        self._encode = checks.optional_function("encode", encode, rule)
        if compression not in _SUFFIXES:
            raise bad("compression", compression, 'must be "gzip", "zstd" or None')
        if compression == "zstd":
            need("zstandard", "objects", 'ObjectSink(compression="zstd")')
        super().__init__(object_settings(url, **options))
        self._compression = compression
        self._suffix = _SUFFIXES[compression]
        self._content_type = _CONTENT_TYPES[compression]

    @property
    def capabilities(self) -> Capabilities:
        """A write is repeatable, since it replaces its own objects."""
        return Capabilities(repeatable="write")

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Store `batch`, encoded in a thread, as one object or one object per partition; suspends
        until the store has confirmed or refused all of them.

        The details of an item are its `StoredObject`. An item that cannot be encoded, or has no
        partition, fails alone with `PermanentError`. The items of an object that was not stored
        fail together: with `RefusedError` (missing bucket, permissions, credentials, region, a full
        disk), `ThrottledError`, `UnavailableError`, `UnknownOutcomeError` (the response was lost),
        `TooLargeError` or `TransientError`. Raises `ClosedError` while the sink is not open. After
        a cancellation, an upload in progress continues for up to `close_timeout`; the batch may
        have been stored.
        """
        return await self._write(batch)

    def _bodies(self, batch: Batch[Any]) -> BatchObjects:
        items: Sequence[Any] = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        lines = encoded_items(self._encode, items, lines=True)
        groups, unplaced = self._settings.partitions.groups(items, lines.indices)
        by_index = (
            dict(zip(lines.indices, lines.records, strict=True)) if lines.errors else lines.records
        )

        def encode(group: Sequence[int]) -> bytes:
            return compressed(ndjson([by_index[i] for i in group]), self._compression)

        return BatchObjects(
            [
                ObjectBody(folder, partial(encode, group), group, batch.pick(group).write_key)
                for folder, group in groups.items()
            ],
            lines.errors | unplaced,
        )
