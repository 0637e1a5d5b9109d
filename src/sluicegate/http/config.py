"""The settings of an HTTP endpoint, validated at construction and shown without secrets."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import SplitResult, unquote, urlsplit

from .._core import addresses, checks
from .._core.addresses import Options
from .._core.checks import bad
from .._core.extras import need
from .._core.opening import check_picklable
from .._core.tls import FILES, check_tls, context_of

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from datetime import timedelta
    from ssl import SSLContext

METHODS = ("POST", "PUT", "PATCH")
COMPRESSIONS = ("gzip", "zstd")
POOL_SIZE = 10
TIMEOUT = 30.0
CONNECT_TIMEOUT = 5.0
CLOSE_TIMEOUT = 5.0
MAX_BYTES = 5_000_000
_RULE = "must be an absolute URL that begins with http:// or https://"
_PROXIES = ("http", "https", "socks5", "socks5h")
_PROXY_RULE = "must be a URL that begins with http://, https://, socks5:// or socks5h://"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")
ClientFactory = Callable[[], "HttpClient | Awaitable[HttpClient]"]
Authorization = str | Callable[[], "str | Awaitable[str]"]
Auth = tuple[str, str] | str | Callable[[], "str | Awaitable[str]"]


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


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class HttpAccess:
    """How to reach a server over HTTP; accepted wherever a sink over HTTP takes a URL.

    Args:
        url: `http://` or `https://`. A user and password in it become basic authentication. Shown
            without these and its query.
        auth: `(user, password)`, the value of the `Authorization` header, or a function, async or
            not, that returns that value for each request. Never shown.
        headers: headers of every request; they replace the sink's own, such as `Content-Type`.
            Values are never shown.
        ssl_cafile: the file with the certificates to trust; default: those of the system.
        ssl_certfile: the file with the client's own certificate.
        ssl_keyfile: the file with its private key; default: `ssl_certfile`.
        ssl_password: the password of the private key. Never shown.
        ssl_context: an `ssl.SSLContext` instead of the files, or a function that returns it, which
            can be pickled.
        timeout: seconds of network silence; default 30, of which at most 5 for connecting. `Timeout`
            limits a whole attempt.
        close_timeout: seconds for closing; default 5.
        client: a function, async or not, that returns the client: an `httpx.AsyncClient` or an
            object with its `stream` and `aclose`. The sink closes it.
        client_options: any other option of `httpx.AsyncClient`: `proxy`, `http2` and so on. Never
            shown.

    Raises `ConfigError` for a bad argument. Connects to nothing.
    """

    url: str
    auth: Auth | None = field(default=None, kw_only=True)
    headers: Mapping[str, str] = field(default_factory=Options, kw_only=True)
    ssl_cafile: str | None = field(default=None, kw_only=True)
    ssl_certfile: str | None = field(default=None, kw_only=True)
    ssl_keyfile: str | None = field(default=None, kw_only=True)
    ssl_password: str | None = field(default=None, kw_only=True)
    ssl_context: SSLContext | Callable[[], SSLContext] | None = field(default=None, kw_only=True)
    timeout: float | timedelta | None = field(default=None, kw_only=True)
    close_timeout: float | timedelta = field(default=CLOSE_TIMEOUT, kw_only=True)
    client: ClientFactory | None = field(default=None, kw_only=True)
    client_options: Mapping[str, Any] = field(default_factory=Options, kw_only=True)

    def __post_init__(self) -> None:
        bare, userinfo = _check_url(self.url)
        if userinfo is not None and self.auth is not None:
            raise bad("auth", "...", "cannot be combined with a URL that contains a user")
        if self.client is not None:
            _check_client(self)
        check_tls(self)
        options = _own_options(self.client_options)
        if context_of(self) is not None and "verify" in options:
            raise bad("client_options", "verify", "is given by ssl_context= or ssl_cafile=")
        found = {
            "url": bare,  # the login is in `auth`
            "headers": Options(_checked_headers(self.headers)),
            "auth": _authorization(self.auth if userinfo is None else userinfo),
            "timeout": checks.optional_seconds("timeout", self.timeout, usual=checks.LONG_TIMEOUT),
            "close_timeout": checks.seconds(
                "close_timeout", self.close_timeout, usual=checks.LONG_TIMEOUT
            ),
            "client_options": options,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def place(self) -> str:
        """Only scheme, host and path of the URL."""
        return addresses.place(urlsplit(self.url))

    def __reduce__(self) -> tuple[Any, ...]:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("ssl_context", "client_options"):
            check_picklable(self, name, given[name])
        return partial(type(self), **given), ()

    def __repr__(self) -> str:
        return f"HttpAccess({self.place})"


def access_of(url: object) -> HttpAccess:
    """Return the access of an argument that is a URL or an access. Raises `ConfigError`."""
    return url if isinstance(url, HttpAccess) else HttpAccess(cast("str", url))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The validated settings of requests to one URL."""

    access: HttpAccess
    url: str
    method: str
    headers: Mapping[str, str]
    idempotency_header: str | None
    compression: str | None
    max_bytes: int | None
    pool_size: int | None

    @property
    def auth(self) -> Authorization | None:
        """The value of the header, or a function that returns it."""
        return cast("Authorization | None", self.access.auth)

    @property
    def close_timeout(self) -> float:
        """Seconds for closing."""
        return cast("float", self.access.close_timeout)

    @property
    def place(self) -> str:
        """Only scheme, host and path of the URL."""
        return addresses.place(urlsplit(self.url))

    def client_options(self) -> dict[str, Any]:
        """The arguments of `httpx.AsyncClient`."""
        import httpx  # an optional dependency

        timeout = cast("float", self.access.timeout or TIMEOUT)
        options: dict[str, Any] = {
            "timeout": httpx.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT)),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=self.pool_size),
            **self.access.client_options,
        }
        if (context := context_of(self.access)) is not None:
            options["verify"] = context() if callable(context) else context
        return options

    def __repr__(self) -> str:
        return f"Endpoint({self.place})"


def endpoint(
    access: HttpAccess,
    url: str,
    *,
    own_headers: Mapping[str, str],
    method: str = "POST",
    idempotency_header: str | None = None,
    compression: str | None = None,
    max_bytes: int | None = MAX_BYTES,
    pool_size: int | None = None,
) -> Endpoint:
    """Validate the settings of `url` at a server. The access's headers override `own_headers`, those
    of the sink. No error shows a secret.
    """
    if access.client is None:
        need("httpx", "http", "a sink over HTTP")
    if compression is not None:
        _check_compression(compression)
    if pool_size is not None:
        checks.count("pool_size", pool_size)
    elif access.client is None:
        pool_size = POOL_SIZE
    return Endpoint(
        access=access,
        url=_check_url(url)[0],
        method=checks.choice("method", method, METHODS),
        headers=Options(_headers(access.headers, own_headers, compression)),
        idempotency_header=None
        if idempotency_header is None
        else _header_name("idempotency_header", idempotency_header),
        compression=compression,
        max_bytes=checks.optional_count("max_bytes", max_bytes),
        pool_size=pool_size,
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


def _check_client(access: HttpAccess) -> None:
    client: object = access.client
    if not callable(client):
        rule = (
            "must be a function that returns a client (async or not), since a live client belongs "
            "to one event loop and cannot be pickled"
        )
        raise bad("client", type(client).__name__, rule)
    for name in ("client_options", "timeout", "ssl_context", *FILES):
        if getattr(access, name):
            raise bad(
                name,
                "...",
                "cannot be combined with client=, whose function determines the connection",
            )
    if isinstance(client, type) and hasattr(client, "close") and not hasattr(client, "aclose"):
        rule = "makes a client that blocks the event loop; pass httpx.AsyncClient"
        raise bad("client", client.__name__, rule)


def _check_compression(compression: str) -> None:
    checks.choice("compression", compression, COMPRESSIONS)
    if compression == "zstd":
        need("zstandard", "http", 'compression="zstd"')


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(cast("object", headers), Mapping):
        raise bad("headers", type(headers).__name__, "must be a mapping of header names to values")
    for name, value in headers.items():
        known = _header_name("headers", name).lower()
        if known == "authorization":
            raise bad("headers", name, "is given by auth=")
        if known in {"content-encoding", "content-length", "transfer-encoding"}:
            raise bad("headers", name, "is set by the sink; see compression=")
        header_value(f"headers[{name!r}]", value)
    return dict(headers)


def _headers(
    headers: Mapping[str, str], own: Mapping[str, str], compression: str | None
) -> dict[str, str]:
    merged = {"accept-encoding": "gzip"} | {name.lower(): value for name, value in own.items()}
    if compression is not None:
        merged["content-encoding"] = compression
    return merged | {name.lower(): value for name, value in headers.items()}


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


def _own_options(options: Mapping[str, Any]) -> Options:
    if not isinstance(cast("object", options), Mapping):
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
    for name in options:
        if name in ours:
            raise bad("client_options", name, ours[name])
    if isinstance(proxy := options.get("proxy"), str):
        addresses.split("client_options with proxy", proxy, _PROXIES, _PROXY_RULE)
    return Options(options)
