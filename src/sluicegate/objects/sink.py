"""Batches as objects of an object store: the base of the sinks, and the sink of JSON lines.

*Reach*: whether a store responds during one write.

1. An upload without a connection, or without a response in time, ends the write if no other one was
   confirmed since it began: the uploads that have not begun are not attempted. With a thousand
   partitions, the write would otherwise end an hour after the store has stopped responding, and
   only then be an outage that is logged.
2. An item that was not sent uses up no attempt, so the error of its object is an `UnavailableError`.
3. Objects whose earlier upload had no response come last, so that one that always takes too long
   holds back no other.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypedDict, Unpack

from .._core import checks
from .._core.batch import RowBatch
from .._core.checks import bad
from .._core.errors import ClosedError, RefusedError, SinkError, TimedOutError, UnavailableError
from .._core.extras import need
from .._core.keywords import takes
from .._core.opening import Openable
from .._core.outcome import Outcome
from .._core.public import publish
from .._core.runtime.threads import in_thread
from .._core.sink import Capabilities, WriteResult
from .._core.values.encoding import compressed, encoded_items, ndjson
from .partitions import Partitions
from .store import StoreGiven, Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from .._core.batch import Batch


TIMEOUT = 30.0
CONCURRENCY = 8
_SUFFIXES = {None: "ndjson", "gzip": "ndjson.gz", "zstd": "ndjson.zst"}
_CONTENT_TYPES = {
    None: "application/x-ndjson",
    "gzip": "application/gzip",
    "zstd": "application/zstd",
}


class StoredObject(NamedTuple):
    """The object in which an item was stored; the details of its receipt."""

    path: str
    """The path relative to the sink's URL."""
    e_tag: str | None
    """The store's entity tag for its content."""


class ObjectOptions(TypedDict, total=False):
    """Keyword arguments common to the sinks of objects; `object_settings` has their defaults."""

    partition_by: Sequence[str] | Mapping[str, str | Callable[[Any], object]] | None
    prefix: str
    concurrency: int
    timeout: float | timedelta
    close_timeout: float | timedelta
    config: Mapping[str, Any] | None
    client_options: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """The validated form of `ObjectOptions`."""

    store: StoreGiven
    partitions: Partitions
    prefix: str
    concurrency: int
    close_timeout: float


def object_settings(
    url: object,
    *,
    partition_by: Sequence[str] | Mapping[str, str | Callable[[Any], object]] | None = None,
    prefix: str = "part",
    concurrency: int = CONCURRENCY,
    timeout: float | timedelta = TIMEOUT,
    close_timeout: float | timedelta = 5.0,
    config: Mapping[str, Any] | None = None,
    client_options: Mapping[str, Any] | None = None,
) -> ObjectSettings:
    """Validate the arguments. Raises `ConfigError`, and `MissingExtra` without obstore."""
    seconds = checks.seconds("timeout", timeout, usual=checks.LONG_TIMEOUT)
    if not checks.text("prefix", prefix).replace("-", "").replace("_", "").isalnum():
        raise bad(
            "prefix",
            prefix,
            "must consist of letters, digits, '-' and '_': it begins each object's name",
        )
    return ObjectSettings(
        store=StoreGiven.of(url, config=config, client_options=client_options, timeout=seconds),
        partitions=Partitions.of(partition_by),
        prefix=prefix,
        concurrency=checks.count("concurrency", concurrency),
        close_timeout=checks.seconds("close_timeout", close_timeout, usual=checks.LONG_TIMEOUT),
    )


@dataclass(frozen=True, slots=True)
class ObjectBody:
    """An object that is ready to be stored."""

    folder: str
    encode: Callable[[], Any]
    """Returns the object's bytes, as a buffer."""
    indices: Sequence[int]
    """The indices of its items."""
    key: str
    """The write key of these items alone: the same when only they are written again."""


@dataclass(frozen=True, slots=True)
class BatchObjects:
    """The objects of a batch, and an error for every item that is in none of them."""

    objects: Sequence[ObjectBody]
    errors: dict[int, BaseException]


class ObjectBase(Openable, ABC):
    """Writes each batch as one object, or as one object per partition.

    1. An object's name is a digest of the batch's write key and of the bytes. So a repeated write
       of a batch replaces its own objects, and never those of another batch.
    2. Each object is encoded when its upload is next, so the memory of a write does not grow with
       the number of its partitions.
    3. The items of an object are settled as soon as it is stored: a write that is cut continues
       with the other objects.
    4. A store that stops responding ends a write soon: see `Reach`.
    """

    _run_time: ClassVar[tuple[str, ...]] = ("_uploads",)
    _suffix: str
    _content_type: str

    def __init__(self, settings: ObjectSettings) -> None:
        self._settings = settings
        self._uploads: Uploads | None = None

    @abstractmethod
    def _bodies(self, batch: Batch[Any]) -> BatchObjects:
        """Encode a batch. Runs in a thread."""

    async def _write(self, batch: Batch[Any]) -> WriteResult | None:
        uploads = self._uploads
        if uploads is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        made = await in_thread(self._bodies, batch)
        objects = made.objects
        if doubtful := batch.maybe_applied:
            objects = sorted(objects, key=lambda each: not doubtful.isdisjoint(each.indices))
        reach = Reach(self._settings.store.place)
        answers = await asyncio.gather(
            *(self._store(uploads, batch, each, reach) for each in objects), return_exceptions=True
        )
        errors = made.errors
        for each, answer in zip(objects, answers, strict=True):
            if isinstance(answer, SinkError):
                errors.update(dict.fromkeys(each.indices, answer))
            elif answer is not None:
                raise answer
        return WriteResult.failed(batch, errors) if errors else None

    async def _store(
        self, uploads: Uploads, batch: Batch[Any], body: ObjectBody, reach: Reach
    ) -> None:
        mark = 0

        def made() -> tuple[str, Any]:
            nonlocal mark
            mark = reach.begin()
            content = body.encode()
            name = f"{self._settings.prefix}-{_digest(body.key, content)}.{self._suffix}"
            return body.folder + name, content

        try:
            place = StoredObject(*await uploads.put(made, self._content_type))
        except SinkError as error:
            reach.fail(mark, error)
            raise
        reach.confirm()
        batch.settle(body.indices, Outcome.DELIVERED, dict.fromkeys(body.indices, place))

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        self._uploads = uploads = Uploads(
            settings.store,
            concurrency=settings.concurrency,
            close_timeout=settings.close_timeout,
        )
        stack.push_async_callback(uploads.close)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.store.place!r})"


def _digest(key: str, content: Any) -> str:
    """The digest of a write key and its bytes: the same only for the same batch."""
    digest = hashlib.blake2b(f"{key}\0".encode(), digest_size=16)
    digest.update(content)
    return digest.hexdigest()


# -- reach -----------------------------------------------------------------------------------------


class Reach:
    """The responses of a store to the uploads of one write."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._confirmed = 0
        self._lost: UnavailableError | None = None

    def begin(self) -> int:
        """Begin an upload; return its mark. Raises `UnavailableError` if the store does not
        respond.
        """
        if self._lost is not None:
            raise self._lost.with_traceback(None)  # raised for each upload, it would grow
        return self._confirmed

    def confirm(self) -> None:
        """Count a confirmed upload."""
        self._confirmed += 1

    def fail(self, mark: int, error: SinkError) -> None:
        """Note an upload that failed."""
        if self._lost is not None:
            return
        is_away = isinstance(error, UnavailableError) and not isinstance(error, RefusedError)
        if (is_away or isinstance(error, TimedOutError)) and mark == self._confirmed:
            self._lost = UnavailableError(
                f"not sent, because {self._place} did not respond to another upload of the write"
            )


# -- JSON lines ------------------------------------------------------------------------------------


class ObjectSink(ObjectBase):
    """Writes each batch as an object of JSON lines to S3, Google Cloud Storage, Azure or a folder.

    An object appears completely or not at all, and its items are delivered once the store has
    confirmed it. Its name is a digest of the batch and its bytes, so a repeated write replaces its
    own object: a retry leaves no duplicates if `encode` returns the same bytes. Since a batch is
    one object, the batcher's `Limits` (`max_items`, `max_bytes`, `max_delay`) determine the size
    and age of objects.

    Args:
        url: `"s3://bucket/folder"`, `"gs://bucket/folder"`, `"az://container/folder"`,
            `"file:///folder"` (existing), or a function that returns an obstore store.
        encode: a function from an item to its line, as text or bytes without a newline. Default:
            JSON, as for `FileSink`.
        compression: `"gzip"`, or `"zstd"`; default: none.
        partition_by: the fields that divide a batch into objects, in folders such as
            `day=2026-01-31/`, or a mapping from the folders' names to fields or functions of an
            item. Values are text, whole numbers, bools, dates or `None`.
        prefix: the beginning of each object's name; default `"part"`.
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


publish("sluicegate.objects", ObjectSink)
