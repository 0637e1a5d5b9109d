"""The settings of an HTTP endpoint, validated at construction and shown without secrets."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, cast
from urllib.parse import SplitResult, unquote, urlsplit

from .._core import addresses, checks
from .._core.addresses import Options
from .._core.checks import bad
from .._core.extras import need

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from datetime import timedelta

METHODS = ("POST", "PUT", "PATCH")
COMPRESSIONS = ("gzip", "zstd")
POOL_SIZE = 10
TIMEOUT = 30.0
CONNECT_TIMEOUT = 5.0
MAX_BYTES = 5_000_000
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Room for an error of 500 bytes for each of the 125,000 smallest actions in a bulk body of 5 MB."""
_RULE = "must be an absolute URL that begins with http:// or https://"
_PROXIES = ("http", "https", "socks5", "socks5h")
_PROXY_RULE = "must be a URL that begins with http://, https://, socks5:// or socks5h://"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")


class ClientResponse(Protocol):
    """A response of a client with httpx's interface, its body still unread."""

    @property
    def status_code(self) -> int: ...  # documented by httpx
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def is_stream_consumed(self) -> bool:
        """Whether a hook of the client has already read the body, which is then in `content`."""
        ...

    @property
    def content(self) -> bytes: ...
    def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body in parts as received, not decompressed."""
        ...


class HttpClient(Protocol):
    """The part of the interface of `httpx.AsyncClient` that sinks use."""

    def stream(
        self,
        method: str,
        url: str,
        *,
        content: bytes,
        headers: Mapping[str, str],
        follow_redirects: bool,
    ) -> AbstractAsyncContextManager[ClientResponse]:
        """Send a request; the context yields the response, of any status, once its headers have
        arrived, and closes it.
        """
        ...

    async def aclose(self) -> None:
        """Close every connection."""


ClientFactory = Callable[[], "HttpClient | Awaitable[HttpClient]"]
Authorization = str | Callable[[], "str | Awaitable[str]"]
Auth = tuple[str, str] | Authorization


class HttpOptions(TypedDict, total=False):
    """Keyword arguments common to the sinks over HTTP; `endpoint` has their defaults."""

    headers: Mapping[str, str] | None
    auth: Auth | None
    max_bytes: int | None
    max_answer_bytes: int
    client: ClientFactory | None
    client_options: Mapping[str, Any] | None
    pool_size: int | None
    timeout: float | timedelta | None
    close_timeout: float | timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The validated settings of requests to one URL."""

    url: str
    method: str
    headers: Mapping[str, str]
    auth: Authorization | None
    idempotency_header: str | None
    compression: str | None
    max_bytes: int | None
    max_answer_bytes: int
    client: ClientFactory | None
    options: Options
    pool_size: int | None
    timeout: float
    close_timeout: float

    @property
    def place(self) -> str:
        """Only scheme, host and path of the URL."""
        return addresses.place(urlsplit(self.url))

    def client_options(self) -> dict[str, Any]:
        """The arguments of `httpx.AsyncClient`."""
        import httpx  # an optional dependency

        options: dict[str, Any] = {
            "timeout": httpx.Timeout(self.timeout, connect=min(self.timeout, CONNECT_TIMEOUT)),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=self.pool_size),
            **self.options,
        }
        if callable(options.get("verify")):
            options["verify"] = options["verify"]()
        return options

    def __repr__(self) -> str:
        return f"Endpoint({self.place})"


def endpoint(
    url: str,
    *,
    own_headers: Mapping[str, str],
    method: str = "POST",
    idempotency_header: str | None = None,
    compression: str | None = None,
    headers: Mapping[str, str] | None = None,
    auth: Auth | None = None,
    max_bytes: int | None = MAX_BYTES,
    max_answer_bytes: int = MAX_ANSWER_BYTES,
    client: ClientFactory | None = None,
    client_options: Mapping[str, Any] | None = None,
    pool_size: int | None = None,
    timeout: float | timedelta | None = None,
    close_timeout: float | timedelta = 5.0,
) -> Endpoint:
    """Validate the settings of `url`. The user's headers override `own_headers`, those of the sink.
    No error shows a secret.
    """
    bare, userinfo = _check_url(url)
    if userinfo is not None and auth is not None:
        raise bad("auth", "...", "cannot be combined with a URL that contains a user")
    if client is not None:
        _check_client(client, client_options, timeout)
    else:
        need("httpx", "http", "a sink over HTTP")
    if compression is not None:
        _check_compression(compression)
    return Endpoint(
        url=bare,
        method=checks.choice("method", method, METHODS),
        headers=Options(_headers(headers, own_headers, compression)),
        auth=_authorization(auth if userinfo is None else userinfo),
        idempotency_header=None
        if idempotency_header is None
        else _header_name("idempotency_header", idempotency_header),
        compression=compression,
        max_bytes=checks.optional_count("max_bytes", max_bytes),
        max_answer_bytes=checks.count("max_answer_bytes", max_answer_bytes),
        client=client,
        options=_own_options(client_options),
        pool_size=checks.count("pool_size", pool_size)
        if pool_size is not None
        else None
        if client is not None
        else POOL_SIZE,
        timeout=TIMEOUT
        if timeout is None
        else checks.seconds("timeout", timeout, usual=checks.LONG_TIMEOUT),
        close_timeout=checks.seconds("close_timeout", close_timeout, usual=checks.LONG_TIMEOUT),
    )


def _check_url(url: object) -> tuple[str, tuple[str, str] | None]:
    parts = split_url(url)
    if not parts.hostname or parts.port == 0 or re.search(r"[\x00-\x20\x7f]", str(url)):
        raise bad("url", "...", _RULE)
    bare = parts._replace(netloc=addresses.hosts(parts), fragment="").geturl()
    if parts.username is None:
        return bare, None
    return bare, (unquote(parts.username), unquote(parts.password or ""))


def split_url(url: object) -> SplitResult:
    """Split the URL of a server. Raises `ConfigError`."""
    return addresses.split("url", url, ("http", "https"), _RULE)


def _check_client(client: object, options: object, timeout: object) -> None:
    if not callable(client):
        rule = (
            "must be a function that returns a client (async or not), since a live client belongs "
            "to one event loop and cannot be pickled"
        )
        raise bad("client", type(client).__name__, rule)
    for name, value in (("client_options", options), ("timeout", timeout)):
        if value is not None:
            raise bad(
                name,
                "...",
                "cannot be combined with client=, whose function determines the connection",
            )
    kind: object = client
    if isinstance(kind, type) and hasattr(kind, "close") and not hasattr(kind, "aclose"):
        rule = "makes a client that blocks the event loop; pass httpx.AsyncClient"
        raise bad("client", kind.__name__, rule)


def _check_compression(compression: str) -> None:
    checks.choice("compression", compression, COMPRESSIONS)
    if compression == "zstd":
        need("zstandard", "http", 'compression="zstd"')


def _headers(
    headers: Mapping[str, str] | None, own: Mapping[str, str], compression: str | None
) -> dict[str, str]:
    if headers is not None and not isinstance(cast("object", headers), Mapping):
        raise bad("headers", type(headers).__name__, "must be a mapping of header names to values")
    merged = {"accept-encoding": "gzip"} | {name.lower(): value for name, value in own.items()}
    if compression is not None:
        merged["content-encoding"] = compression
    for name, value in (headers or {}).items():
        known = _header_name("headers", name).lower()
        if known == "authorization":
            raise bad("headers", name, "is given by auth=")
        if known in {"content-encoding", "content-length", "transfer-encoding"}:
            raise bad("headers", name, "is set by the sink; see compression=")
        merged[known] = header_value(f"headers[{name!r}]", value)
    return merged


def _header_name(argument: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise bad(argument, name, "must be a header name")
    return name


def header_value(argument: str, value: object) -> str:
    """Validate a header's value. Raises `ConfigError`, which does not show it."""
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise bad(argument, "...", "must be printable ASCII text without spaces around it")
    return value


def _authorization(auth: Auth | None) -> Authorization | None:
    if auth is None or callable(auth):
        return auth
    if isinstance(auth, str):
        return header_value("auth", auth)
    try:
        user, password = auth
        pair = f"{user}:{password}".encode()
    except (TypeError, ValueError):
        rule = (
            "must be (user, password), the value of the Authorization header, or a function "
            "that returns it"
        )
        raise bad("auth", type(auth).__name__, rule) from None
    if ":" in user:
        raise bad("auth", "...", "the user must not contain a colon")
    return "Basic " + base64.b64encode(pair).decode()


def _own_options(options: Mapping[str, Any] | None) -> Options:
    if options is not None and not isinstance(cast("object", options), Mapping):
        raise bad(
            "client_options", type(options).__name__, "must be a mapping of the client's options"
        )
    ours = {
        "auth": "is given by auth=",
        "headers": "are given by headers=",
        "base_url": "is given by the URL",
        "timeout": "is given by timeout=",
        "limits": "are given by pool_size=",
        "follow_redirects": "a redirect can turn a POST into a GET without a body; give "
        "the final URL",
    }
    for name in options or {}:
        if name in ours:
            raise bad("client_options", name, ours[name])
    if isinstance(proxy := (options or {}).get("proxy"), str):
        addresses.split("client_options with proxy", proxy, _PROXIES, _PROXY_RULE)
    return Options(options or {})
