"""The common base of the sinks that write batches as objects."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypedDict

from ..._clients.objects.place import StoreGiven
from ..._clients.objects.uploads import Uploads
from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import ClosedError, SinkError
from ..._core.opening import Openable
from ..._core.result import WriteResult
from ..._core.threads import in_thread
from .manifest import manifest
from .partitions import Partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from ..._core.batch import Batch

TIMEOUT = 30.0
CONCURRENCY = 8


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
    manifest: bool
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
    manifest: bool
    concurrency: int
    close_timeout: float


def object_settings(
    url: object,
    *,
    partition_by: Sequence[str] | Mapping[str, str | Callable[[Any], object]] | None = None,
    prefix: str = "part",
    manifest: bool = False,
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
        manifest=manifest,
        concurrency=checks.count("concurrency", concurrency),
        close_timeout=checks.seconds("close_timeout", close_timeout, usual=checks.LONG_TIMEOUT),
    )


@dataclass(frozen=True, slots=True)
class ObjectBody:
    """An object that is ready to be stored."""

    folder: str
    content: Any
    """The object's bytes, as a buffer."""
    indices: Sequence[int]
    """The indices of its items."""
    key: str
    """The write key of these items alone: the same when only they are written again."""


@dataclass(frozen=True, slots=True)
class BatchObjects:
    """The objects of a batch, and an error for each item that is not in any of them."""

    objects: Sequence[ObjectBody]
    errors: dict[int, BaseException]


class ObjectBase(Openable, ABC):
    """Writes each batch as one object, or as one object per partition.

    An object's name is a digest of the batch's write key and of the bytes. So a repeated write of a
    batch replaces its own objects, and never those of another batch.
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

    def _prepared(self, batch: Batch[Any]) -> tuple[BatchObjects, Sequence[str]]:
        """The objects and their paths; a digest takes one millisecond per megabyte."""
        made = self._bodies(batch)
        return made, [each.folder + self._name(each) for each in made.objects]

    async def _write(self, batch: Batch[Any]) -> WriteResult | None:
        uploads = self._uploads
        if uploads is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        made, paths = await in_thread(self._prepared, batch)
        answers = await asyncio.gather(
            *(
                uploads.put(path, each.content, self._content_type)
                for path, each in zip(paths, made.objects, strict=True)
            ),
            return_exceptions=True,
        )
        errors, details = made.errors, dict[int, object]()
        stored: list[tuple[StoredObject, ObjectBody]] = []
        for path, each, answer in zip(paths, made.objects, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, SinkError):
                    raise answer
                errors.update(dict.fromkeys(each.indices, answer))
            else:
                place = StoredObject(path, answer)
                stored.append((place, each))
                details.update(dict.fromkeys(each.indices, place))
        if self._settings.manifest and stored:
            await self._put_manifest(uploads, batch.write_key, stored)
        return WriteResult.failed(batch, errors, details=details)

    async def _put_manifest(
        self, uploads: Uploads, key: str, stored: Sequence[tuple[StoredObject, ObjectBody]]
    ) -> None:
        content = manifest(
            (place.path, place.e_tag, len(each.indices), memoryview(each.content).nbytes)
            for place, each in stored
        )
        path = f"_manifests/{self._settings.prefix}-{_digest(key, content)}.json"
        await uploads.put(path, content, "application/json")

    def _name(self, body: ObjectBody) -> str:
        return f"{self._settings.prefix}-{_digest(body.key, body.content)}.{self._suffix}"

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        self._uploads = Uploads(
            settings.store,
            concurrency=settings.concurrency,
            close_timeout=settings.close_timeout,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.store.place!r})"


def _digest(key: str, content: Any) -> str:
    """The digest of a write key and its bytes: the same only for the same batch."""
    digest = hashlib.blake2b(f"{key}\0".encode(), digest_size=16)
    digest.update(content)
    return digest.hexdigest()
