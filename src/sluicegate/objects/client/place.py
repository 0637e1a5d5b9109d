"""The place of an object store: a URL, or a function that creates a store; checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..._core import addresses
from ..._core.addresses import Options
from ..._core.checks import bad
from ..._core.errors import ConfigError, SluicegateError
from ..._core.extras import need
from .errors import missing_folder, translated

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMES = ("s3", "gs", "az", "abfs", "abfss", "file")
CONNECT_TIMEOUT = 5.0
_TRUE = frozenset({"1", "true", "yes", "on"})
_RULE = (
    "must be a URL such as s3://bucket/folder, gs://bucket/folder, az://account/container/folder or "
    "file:///folder, or a function that makes a store of obstore"
)


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
        if parts.query or parts.fragment or "@" in parts.netloc or (parts.port and not own_at):
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
        if (
            str(settings.get("endpoint", "")).startswith("http://")
            or os.environ.get("AWS_ALLOW_HTTP", "").lower() in _TRUE
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

    def made(self) -> Any:
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
            told = str(translated(error, self.place))
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
