"""The common base of the sinks that write batches as objects."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypedDict

from ..._core import checks
from ..._core.answer import same_detail
from ..._core.checks import bad
from ..._core.errors import ClosedError, SinkError
from ..._core.opening import Openable
from ..._core.outcome import Outcome
from ..._core.runtime.threads import in_thread
from ..._core.sink import WriteResult
from ..client.place import StoreGiven
from ..client.uploads import Uploads
from .manifest import manifest
from .partitions import Partitions
from .reach import Reach

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
        manifest=checks.flag("manifest", manifest),
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
class ConfirmedObject:
    """An object that the store has confirmed."""

    place: StoredObject
    indices: Sequence[int]
    size: int
    """In bytes."""

    def settle(self, batch: Batch[Any]) -> None:
        """Book its items as delivered."""
        batch.settle(self.indices, Outcome.DELIVERED, same_detail(self.indices, self.place))


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
       with the other objects. With a manifest they are settled after the manifest.
    4. A store that stops responding ends a write soon: see `reach.py`.
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
        errors, stored = made.errors, list[ConfirmedObject]()
        for each, answer in zip(objects, answers, strict=True):
            if isinstance(answer, ConfirmedObject):
                stored.append(answer)
            elif isinstance(answer, SinkError):
                errors.update(dict.fromkeys(each.indices, answer))
            else:
                raise answer
        if self._settings.manifest and stored:
            await self._put_manifest(uploads, batch.write_key, stored)
            for confirmed in stored:
                confirmed.settle(batch)
        return WriteResult.failed(batch, errors) if errors else None

    async def _store(
        self, uploads: Uploads, batch: Batch[Any], body: ObjectBody, reach: Reach
    ) -> ConfirmedObject:
        size = mark = 0

        def made() -> tuple[str, Any]:
            nonlocal size, mark
            mark = reach.begin()
            content = body.encode()
            size = memoryview(content).nbytes
            name = f"{self._settings.prefix}-{_digest(body.key, content)}.{self._suffix}"
            return body.folder + name, content

        try:
            place = StoredObject(*await uploads.put(made, self._content_type))
        except SinkError as error:
            reach.fail(mark, error)
            raise
        reach.confirm()
        stored = ConfirmedObject(place, body.indices, size)
        if not self._settings.manifest:
            stored.settle(batch)
        return stored

    async def _put_manifest(
        self, uploads: Uploads, key: str, stored: Sequence[ConfirmedObject]
    ) -> None:
        content = manifest(
            (each.place.path, each.place.e_tag, len(each.indices), each.size) for each in stored
        )
        # tags differ in every upload, but a repeated write must replace its own manifest
        listed = "\0".join(sorted(each.place.path for each in stored)).encode()
        path = f"_manifests/{self._settings.prefix}-{_digest(key, listed)}.json"
        await uploads.put(lambda: (path, content), "application/json")

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
