"""An object store: its place, and atomic uploads.

1. In a local folder every change is synced to the disk. An object is replaced by renaming a synced
   one, so that a power cut leaves one of the two.
2. obstore's blocking functions are called in threads. After its asynchronous ones, its own threads
   may need the interpreter for a moment longer, and abort a process that exits immediately (SIGABRT,
   in place of the exit code of a command).
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from .._core import addresses
from .._core.addresses import Options
from .._core.checks import bad
from .._core.errors import ConfigError, SluicegateError
from .._core.extras import need
from .._core.runtime.threads import in_thread, uncut
from .errors import missing_folder, translate, unreadable_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping


SCHEMES = ("s3", "gs", "az", "abfs", "abfss", "file")
CONNECT_TIMEOUT = 5.0
_ENVIRONMENTS = {"s3": "AWS", "gs": "GOOGLE"}
"""The beginnings of variables' names; for other schemes, `AZURE`."""
_TRUE = frozenset({"1", "true", "yes", "on"})
_CONTAINER = re.compile(r"[\w$-]+@[\w.-]+\.(?:windows\.net|fabric\.microsoft\.com)")
"""The place `container@account.dfs.core.windows.net` of an `abfss` URL, which is not a login."""
_RULE = (
    "must be a URL such as s3://bucket/folder, gs://bucket/folder, az://container/folder or "
    "file:///folder, or a function that makes a store of obstore"
)
PART_BYTES = 8 << 20
"""Size of a part in bytes; larger objects are sent in parts, several concurrently."""
PARTS_AT_ONCE = 4
"""Parts of one object that are sent concurrently."""
RELEASED_WITHIN = 0.02
"""Pause in seconds after the last upload. obstore's threads release Python objects shortly after an
upload has ended, and would abort a process that exits meanwhile (SIGABRT).
"""


@dataclass(frozen=True, slots=True, repr=False)
class StoreGiven:
    """The store of a sink; it is created when the sink is opened."""

    given: Any
    place: str
    """For messages: scheme, bucket and folder."""
    config: Options
    client: Options

    @classmethod
    def of(
        cls,
        given: Any,
        *,
        config: Mapping[str, Any] | None,
        client_options: Mapping[str, Any] | None,
        timeout: float,
    ) -> StoreGiven:
        """Check the arguments. Raises `ConfigError`, and `MissingExtra` without obstore."""
        obstore()
        if callable(given):
            for name, options in (("config", config), ("client_options", client_options)):
                if options:
                    raise bad(name, [*options], "needs a URL: the function's store has its own")
            return cls(given, "the store of a function", Options(), Options())
        if isinstance(given, str) and given.startswith(("http://", "https://")):
            rule = "is an endpoint; write url='s3://bucket/folder' and config={'endpoint': '...'}"
            raise bad("url", f"{given.partition(':')[0]}://...", rule)
        own_at = is_folder_url(given)  # the path of a folder may hold an @
        parts = (
            urlsplit(given)
            if own_at
            else addresses.split("url", given, [each for each in SCHEMES if each != "file"], _RULE)
        )
        is_login = "@" in parts.netloc and not (
            parts.scheme.startswith("abfs") and _CONTAINER.fullmatch(parts.netloc)
        )
        if parts.query or parts.fragment or is_login or (parts.port and not own_at):
            raise bad(
                "url", f"{parts.scheme}://...", "must have no user, query or fragment; see config="
            )
        if not (parts.path.strip("/") if parts.scheme == "file" else parts.netloc):
            raise bad("url", given, _RULE)
        if parts.scheme == "file" and config:
            raise bad("config", [*config], "a folder has none")
        settings = Options(config or {})
        own: dict[str, Any] = {
            "timeout": f"{timeout:g}s",
            "connect_timeout": f"{min(timeout / 2, CONNECT_TIMEOUT):g}s",
        }
        # these options hide the environment's from obstore
        variable = f"{_ENVIRONMENTS.get(parts.scheme, 'AZURE')}_ALLOW_HTTP"
        if (
            str(settings.get("endpoint", "")).startswith("http://")
            or os.environ.get(variable, "").lower() in _TRUE
        ):
            own["allow_http"] = True  # an endpoint without TLS, given by the user
        return cls(given, given.rstrip("/"), settings, Options({**own, **(client_options or {})}))

    @property
    def is_folder(self) -> bool:
        """Whether the store is a local folder."""
        return is_folder_url(self.given)

    @property
    def folder(self) -> str:
        """The path of that folder."""
        path: str = unquote(urlsplit(str(self.given)).path)
        return path

    def make(self) -> Any:
        """Create the store.

        Raises `ConfigError` for options that obstore refuses and for a function that returns a
        local folder, and `RefusedError` for a folder that does not exist.
        """
        from obstore.store import LocalStore, from_url

        if callable(self.given):
            if isinstance(store := self.given(), LocalStore):
                rule = "must not return a LocalStore, whose objects would not be synced; pass the "
                raise bad("url", store, rule + "folder's URL, such as 'file:///folder'")
            return store
        make: Any = from_url
        try:
            if self.is_folder:
                return make(self.given)
            # only the stack of sinks retries
            return make(
                self.given,
                config=self.config,
                client_options=self.client,
                retry_config={"max_retries": 0},
            )
        except SluicegateError:
            raise
        except Exception as error:
            if self.is_folder:
                raise missing_folder(self.folder) from error
            told = str(translate(error, self.place))
            raise ConfigError(f"url={self.place}: the store cannot be made ({told})") from None

    def __repr__(self) -> str:
        return f"StoreGiven({self.place})"


def is_folder_url(given: object) -> bool:
    """Return whether it is the URL of a local folder."""
    return isinstance(given, str) and given.startswith("file://")


def obstore() -> Any:
    """Return the library. Raises `MissingExtra`."""
    need("obstore", "objects", "a store of objects")
    import obstore as library

    return library


# -- uploads ---------------------------------------------------------------------------------------


class Uploads:
    """The open store of a sink, with at most `concurrency` concurrent uploads.

    A cancelled upload continues for up to `close_timeout` seconds, since a cut-off upload may leave
    parts in the store that are invisible but billed.
    """

    def __init__(self, given: StoreGiven, *, concurrency: int, close_timeout: float) -> None:
        self._given = given
        self._store = given.make()
        self._place = given.place
        self._folder = Path(given.folder) if given.is_folder else None
        self._target: Path | None = self._folder and self._folder.resolve()
        """The folder without symbolic links, which obstore resolves once."""
        self._free = asyncio.Semaphore(concurrency)
        self._close_timeout = close_timeout
        self._is_used = False

    async def close(self) -> None:
        """Suspend until obstore's threads have released the last upload."""
        if self._is_used:
            await in_thread(time.sleep, RELEASED_WITHIN)  # noqa: TID251  # threads know no virtual time

    async def put(
        self, make: Callable[[], tuple[str, Any]], content_type: str
    ) -> tuple[str, str | None]:
        """Store an object, in place of an earlier one; return its path and its entity tag.

        `make` returns the path and the content, as any object with a buffer. It runs in a thread
        when an upload is free, so at most `concurrency` contents are in memory. Suspends until the
        store has confirmed the object, or until it is on the local disk. Raises a `SinkError`, and
        whatever `make` raises.
        """
        self._is_used = True
        async with self._free:
            path, body = await in_thread(make)
            storing = self._put(path, body, content_type)
            return path, await uncut(storing, within=self._close_timeout)

    async def _put(self, path: str, body: Any, content_type: str) -> str | None:
        attributes = None if self._folder else {"Content-Type": content_type}
        try:
            target = self._follow()
            put: Coroutine[Any, Any, Any] = obstore().put_async(
                self._store,
                path,
                body,
                attributes=attributes,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
            stored = await put
            if target is not None:
                await in_thread(sync, target / path, target)
        except Exception as error:
            raise translate(error, self._place) from None
        tag: str | None = stored["e_tag"]
        return tag

    def _follow(self) -> Path | None:
        """Return the local folder, and open its store again if its path leads to another one by
        now.

        Raises `RefusedError` if there is none, since obstore would create it, and the `SinkError`
        of a folder that cannot be examined.
        """
        folder = self._folder
        if folder is None:
            return None
        try:
            if not folder.is_dir():
                raise missing_folder(folder)
            target = folder.resolve()
        except OSError as error:
            raise unreadable_folder(error, self._place) from error
        if target != self._target:
            self._store, self._target = self._given.make(), target
        return target


def sync(path: Path, root: Path) -> None:
    """Sync a file and its parent folders to the disk. Blocks."""
    for each in (path, *path.parents):
        number = os.open(each, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
        if each == root:
            return
