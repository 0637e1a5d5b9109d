"""Readiness, liveness, metrics, statistics and the drain of consumers over HTTP, as an ASGI
application.

| request | success | otherwise |
|---|---|---|
| `GET /ready` | 200: all consumers are ready | 503: one is not |
| `GET /live` | 200: all consumers are alive | 503: one is not |
| `GET /metrics` | 200: the metrics of a registry of `prometheus_client` | 501: it is not installed |
| `GET /stats` | 200: `stats()` of all consumers | 401, 403: not admitted by `guard` |
| `POST /drain` | 202: all consumers drain, or have ended | 409: one is not open; 401, 403 |

The body of a probe states the reason, as text, or as JSON if the request accepts it. `?verbose`
adds `explain()`, which contains keys of records. `/stats` and `/drain` answer with JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import socket
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast
from urllib.parse import parse_qs

from ..._core.checks import bad, count, flag, text
from ..._core.errors import ClosedError
from ..._core.extras import missing, need
from ..operated import Operated
from .guard import Guard

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, MutableMapping

    import uvicorn
    from prometheus_client import CollectorRegistry


Scope: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[MutableMapping[str, Any]]]"
Send: TypeAlias = "Callable[[MutableMapping[str, Any]], Awaitable[None]]"
App: TypeAlias = "Callable[[Scope, Receive, Send], Awaitable[None]]"

READY, LIVE, METRICS, STATS, DRAIN = "/ready", "/live", "/metrics", "/stats", "/drain"
NO_CLIENT = str(missing("prometheus_client", "prometheus", "/metrics"))

Verdict: TypeAlias = "tuple[str, str | None]"
"""A consumer's name, and why it fails a probe; `None` if it passes."""

LAST_PORT = 65535
GRACE = 1
"""Seconds for open requests at the end."""


def probes(
    *consumers: Operated,
    restart_when_stalled: bool = False,
    registry: CollectorRegistry | None = None,
    token: str | None = None,
) -> Probes:
    """Return an ASGI application that answers `GET /ready` and `GET /live` with 200 or 503,
    `GET /metrics` for Prometheus, `GET /stats` with the statistics, and `POST /drain`, which calls
    `stop()`.

    Args:
        consumers: at least one; the answer of a probe is 200 only if all of them pass.
        restart_when_stalled: whether a stalled consumer counts as not alive.
        registry: the registry of `/metrics`, as given to the observers; default: the global one of
            `prometheus_client`, or the files of all processes in its multiprocess mode. Without
            `prometheus_client`, `/metrics` answers 501.
        token: admits requests for `/stats` and `/drain` with `Authorization: Bearer <token>`.
            Without it, only loopback is answered; proxies on the same host are not loopback.
            Default: no token.

    Serve it on the event loop of the consumers: a blocked loop then does not answer, which fails
    the probe. Raises `ConfigError` for bad arguments.
    """
    if not consumers:
        raise bad("consumers", consumers, "must be at least one consumer")
    for consumer in consumers:
        if not isinstance(consumer, Operated):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise bad("consumers", consumer, "must be consumers")
    if registry is not None and not _is_registry(registry):
        raise bad("registry", registry, "must be a CollectorRegistry of prometheus_client, or None")
    restart = flag("restart_when_stalled", restart_when_stalled)
    guard = Guard(token)
    return Probes(consumers, restart_when_stalled=restart, registry=registry, guard=guard)


def _is_registry(registry: object) -> bool:
    if find_spec("prometheus_client") is None:
        return False
    from prometheus_client import CollectorRegistry

    return isinstance(registry, CollectorRegistry)


class Answer(NamedTuple):
    """A response."""

    status: int
    kind: str
    """The content type."""
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Probes:
    """The ASGI application of `probes`."""

    def __init__(
        self,
        consumers: tuple[Operated, ...],
        *,
        restart_when_stalled: bool,
        registry: CollectorRegistry | None,
        guard: Guard,
    ) -> None:
        self._consumers = consumers
        self._guard = guard
        self._registry = registry
        self._restart_when_stalled = restart_when_stalled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or an event of the server's lifespan."""
        if scope["type"] == "lifespan":
            await _take_part(receive, send)
        elif scope["type"] == "http":
            await respond(send, self._answer(scope), has_body=scope["method"] != "HEAD")
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    def _answer(self, scope: Scope) -> Answer:
        path = _path_of(scope)
        if path not in {READY, LIVE, METRICS, STATS, DRAIN}:
            return text_answer(404, "not found: try /ready, /live, /metrics, /stats or /drain")
        allowed = ("POST",) if path == DRAIN else ("GET", "HEAD")
        if scope["method"] not in allowed:
            answer = text_answer(405, f"method not allowed: use {allowed[0]}")
            return answer._replace(headers=((b"allow", ", ".join(allowed).encode()),))
        if path == METRICS:
            return _metrics(scope, self._registry)
        if path in {STATS, DRAIN}:
            return self._operate(scope, path)
        verdicts = [self._verdict(consumer, path) for consumer in self._consumers]
        told = [_explained(consumer) for consumer in self._consumers if _is_verbose(scope)]
        status = 200 if all(reason is None for _, reason in verdicts) else 503
        if "application/json" in _header(scope, b"accept"):
            return _json(status, path[1:], verdicts, told)
        lines = [
            f"{name}: {path[1:] if why is None else f'not {path[1:]}: {why}'}"
            for name, why in verdicts
        ]
        return text_answer(status, *lines, *told)

    def _operate(self, scope: Scope, path: str) -> Answer:
        """Answer `/stats` or `/drain`, if the guard admits the request."""
        refusal = self._guard.refusal(scope)
        if refusal is not None:
            answer = text_answer(refusal.status, refusal.text)
            if refusal.challenge is None:
                return answer
            return answer._replace(headers=((b"www-authenticate", refusal.challenge.encode()),))
        told = [_operated(consumer, is_drained=path == DRAIN) for consumer in self._consumers]
        is_open = all(each["stats"] is not None for each in told)
        status = 200 if path == STATS else 202 if is_open else 409
        return _json_text(status, {"consumers": told})

    def _verdict(self, consumer: Operated, path: str) -> Verdict:
        health = consumer.health()
        if path == READY:
            return consumer.name, health.not_ready
        stalled = health.stalled if self._restart_when_stalled else None
        return consumer.name, health.not_alive or stalled


def _operated(consumer: Operated, *, is_drained: bool) -> dict[str, Any]:
    try:
        if is_drained:
            consumer.stop()
        return {"name": consumer.name, "stats": _plain(consumer.stats()), "reason": None}
    except ClosedError as error:
        return {"name": consumer.name, "stats": None, "reason": str(error)}


def _plain(value: Any) -> Any:
    """Convert statistics for JSON: classes and mappings to objects, and their keys to text."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in cast("tuple[Any, ...]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _explained(consumer: Operated) -> str:
    try:
        return str(consumer.explain())
    except ClosedError as error:
        return str(error)


def text_answer(status: int, *lines: str) -> Answer:
    """Build a response of lines."""
    body = "".join([f"{line}\n" for line in lines])
    return Answer(status, "text/plain; charset=utf-8", body.encode(errors="backslashreplace"))


def _json(status: int, probe: str, verdicts: list[Verdict], told: list[str]) -> Answer:
    consumers: list[dict[str, object]] = [
        {"name": name, probe: why is None, "reason": why} for name, why in verdicts
    ]
    for consumer, explanation in zip(consumers, told, strict=False):
        consumer["explanation"] = explanation.splitlines()
    body = {probe: status == 200, "consumers": consumers}
    return _json_text(status, body)


def _json_text(status: int, body: object) -> Answer:
    return Answer(status, "application/json", f"{json.dumps(body)}\n".encode())


def _metrics(scope: Scope, registry: CollectorRegistry | None) -> Answer:
    if find_spec("prometheus_client") is None:
        return text_answer(501, NO_CLIENT)
    import prometheus_client as client
    from prometheus_client import exposition, multiprocess, values

    read = registry or client.REGISTRY
    if registry is None and values.ValueClass is not values.MutexValue:
        read = client.CollectorRegistry()
        multiprocess.MultiProcessCollector(read)  # type: ignore[no-untyped-call]
    encode, kind = exposition.choose_encoder(_header(scope, b"accept"))
    return Answer(200, kind, encode(read))


# -- ASGI ------------------------------------------------------------------------------------------


def _path_of(scope: Scope) -> str:
    """Return the path below the mount point; some servers keep the mount point as a prefix."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _is_verbose(scope: Scope) -> bool:
    return "verbose" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _header(scope: Scope, wanted: bytes) -> str:
    """Return the values of a header, joined by commas."""
    found = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == wanted]
    return ",".join(found)


async def respond(send: Send, answer: Answer, *, has_body: bool) -> None:
    """Send a response; without its body for a HEAD request."""
    headers = [
        (b"content-type", answer.kind.encode()),
        (b"content-length", b"%d" % len(answer.body)),
        (b"cache-control", b"no-store"),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body if has_body else b""})


async def _take_part(receive: Receive, send: Send) -> None:
    """Answer the server's startup and shutdown; there is nothing to do."""
    while (event := (await receive())["type"]) != "lifespan.shutdown":
        await send({"type": f"{event}.complete"})
    await send({"type": "lifespan.shutdown.complete"})


@contextlib.asynccontextmanager
async def serve_probes(
    *consumers: Operated,
    host: str = "127.0.0.1",
    port: int = 8080,
    restart_when_stalled: bool = False,
    registry: CollectorRegistry | None = None,
    token: str | None = None,
) -> AsyncGenerator[tuple[str, int]]:
    """Serve `probes(*consumers)` over HTTP inside an `async with`, that is `/ready`, `/live`,
    `/metrics`, `/stats` and `/drain`; yield the address.

    Args:
        consumers: the consumers to probe, at least one.
        host: the address to listen on; default `127.0.0.1`. Every client that reaches it can read
            keys of records by `?verbose`.
        port: 0 selects a free port; default 8080.
        restart_when_stalled: as for `probes`.
        registry: as for `probes`.
        token: as for `probes`. It travels unencrypted.

    Enter it outside `run`, so that `/ready` answers 503 while the consumer drains. Installs no
    signal handler and no logging, and logs no request. Needs the extra `probes`. Raises
    `MissingExtra`, `ConfigError` for bad arguments, and `OSError` if the address is not available.
    The exit suspends for about 0.2 s, and up to one second longer while requests are open.
    """
    app = probes(
        *consumers, restart_when_stalled=restart_when_stalled, registry=registry, token=token
    )
    text("host", host)
    if count("port", port, least=0) > LAST_PORT:
        raise bad("port", port, f"must be at most {LAST_PORT}")
    need("uvicorn", "probes", "serve_probes")
    with contextlib.closing(listening_at(host, port)) as listening:
        async with serve_app(app, listening):
            yield listening.getsockname()[:2]


@contextlib.asynccontextmanager
async def serve_app(app: App, listening: socket.socket) -> AsyncGenerator[None]:
    """Serve an ASGI application on a socket, without signal handlers and logs."""
    server = _server(app)
    task = asyncio.get_running_loop().create_task(server.serve([listening]), name="probes")
    try:
        yield
    finally:
        server.handle_exit(signal.SIGTERM, None)  # as if SIGTERM had arrived
        await task


def listening_at(host: str, port: int) -> socket.socket:
    """Listen on an address. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    listening.setblocking(False)
    return listening


def _server(app: App) -> uvicorn.Server:
    """Return a server. It overrides parts of uvicorn that are not public, hence the bound of the extra."""
    need("uvicorn", "probes", "serve_probes")
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class ProbeConfig(uvicorn.Config):
        """A configuration that leaves logging to the program."""

        def configure_logging(self) -> None:
            """Configure nothing: loggers are shared with other servers of the process."""

    class ProbeProtocol(H11Protocol):
        """HTTP without an access log: uvicorn's own switch changes a logger of the whole process."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.access_log = False

    class ProbeServer(uvicorn.Server):
        """A server that leaves signals to the program."""

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            """Capture no signals."""
            yield

    return ProbeServer(
        ProbeConfig(
            app,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # otherwise a header decides what is loopback
            http=ProbeProtocol,
            timeout_graceful_shutdown=GRACE,
        )
    )
