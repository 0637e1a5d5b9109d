"""The client of a schema registry: cached results, and requests for the others.

1. `known` returns the cached value, without suspending, and raises `NotLoaded` otherwise; the code
   that calls a codec loads and calls it again (`_core.loading`). In a thread without an event loop,
   `known` loads and waits.
2. A schema's id and contents never change, so they are kept forever. The latest version of a
   subject is kept for `latest_for` seconds. An id that the registry does not know is remembered for
   a few seconds, so that a series of such records causes few requests; `_UNKNOWN_MOST` ids at most.
3. One request at a time runs for the same thing: others wait for its result, or for its error. If
   it is cancelled, one of them takes over.
4. Requests are rare, so each has its own connection: a registry needs no opening or closing, serves
   every loop, and can be pickled. Client and TLS context are made in a thread, since reading
   certificates takes 10 ms.
5. Errors are those of an outage, except for an id that the registry does not know, and a schema
   that cannot be used: these are permanent, and concern only the records with that id. A login, a
   permission, a wrong URL, a missing subject and an incompatible schema are refusals, which name
   their repair and are logged once per outage.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, urlsplit

from ..._core import addresses, checks
from ..._core.classify import caused
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import (
    PermanentError,
    RefusedError,
    SinkError,
    ThrottledError,
    UnavailableError,
    UnknownOutcomeError,
)
from ..._core.loading import NotLoaded, called
from ..._core.logs import for_log, log_safely
from ..._core.runtime.loops import running_loop
from ..._core.runtime.threads import close_within
from ...http.client import whole_body
from ...http.config import access_of, endpoint, header_value
from ...http.errors import REFUSALS, for_status, for_transport, seconds_of, shorten
from ...http.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import timedelta

    from ...http.config import HttpAccess

logger = logging.getLogger("sluicegate.kafka")

_CONTENT = "application/vnd.schemaregistry.v1+json"
_UNKNOWN = frozenset({40401, 40402, 40403, 409, 40901, 42201})
"""Codes of the registry: no such subject, version or schema; an incompatible or invalid schema."""
_UNKNOWN_FOR = 5.0
"""Seconds for which an unknown id is remembered."""
_UNKNOWN_MOST = 1000
_MAX_BYTES = 16 << 20
_MAX_REFERENCES = 1000
_DOWN = "%r: %s; records wait until it responds"
_UP = "%r: it responds again"


class Reference(NamedTuple):
    """A schema that another one imports under a name."""

    name: str
    schema: Schema


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema of the registry."""

    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[Reference, ...] = ()
    given: tuple[Mapping[str, Any], ...] = ()
    """The references as the registry writes them."""

    @property
    def body(self) -> dict[str, Any]:
        """The schema in the body of a request."""
        kind = {} if self.kind == "AVRO" else {"schemaType": self.kind}
        given = {"references": [*self.given]} if self.given else {}
        return {"schema": self.text, **kind, **given}


class _Known(NamedTuple):
    value: Any
    until: float
    """The wall time at which it expires."""


class _Unknown(Exception):
    """The registry does not have the requested schema, or refuses one; its text is the reason."""


class SchemaRegistry:
    """A schema registry with the interface of Confluent's: of Confluent, Karapace, Apicurio
    (`/apis/ccompat/v7`), Redpanda and others. `Avro`, `Protobuf` and `Json` use it.

    Args:
        url: the registry's URL, or an `HttpAccess` with a login (`auth=`: user and password, or
            `"Bearer ..."`, or a function), certificates (`ssl_cafile=`, `ssl_certfile=`), a proxy
            or a client of your own.
        timeout: seconds for one request in full; default 10.
        latest_for: seconds for which the latest version of a subject is used without another
            request; default 300. Ids and their schemas are kept forever.

    Needs no opening or closing. May be shared by any number of codecs, consumers, pipes and sinks,
    and pickled, without its cache.

    Raises `ConfigError` for a bad argument and `MissingExtra` without httpx. Connects to nothing.
    """

    def __init__(
        self,
        url: str | HttpAccess,
        *,
        timeout: float | timedelta = 10.0,
        latest_for: float | timedelta = 300.0,
    ) -> None:
        self.client = RegistryClient(access_of(url), timeout, latest_for)
        """What the codecs use."""

    async def call(self, function: Callable[[Any], Any], argument: object) -> Any:
        """Return `function(argument)` after loading the schemas that it needs; for code of your own
        that is not a step, a handler, a transform or a part of a record, which do the same.

        Args:
            function: a method of a codec, or a function that calls some; plain or async. It runs
                again after each loading, so it must not have effects before.
            argument: its argument.

        Suspends while loading. Raises `UnavailableError`, or `RefusedError` with the repair, if the
        registry does not respond as needed, `PermanentError` for an id that it does not know, and
        the function's own errors.
        """
        return await called(function, argument)

    def __repr__(self) -> str:
        return repr(self.client)


class RegistryClient:
    """The requests to a registry, and their cached results."""

    def __init__(
        self, access: HttpAccess, timeout: float | timedelta, latest_for: float | timedelta
    ) -> None:
        self._access = access
        self._endpoint = endpoint(
            access, access.url, own_headers={"accept": _CONTENT, "content-type": _CONTENT}
        )
        self._timeout = checks.seconds("timeout", timeout, usual=checks.LONG_TIMEOUT)
        self._latest_for = checks.seconds("latest_for", latest_for, usual=checks.LONG_PERIOD)
        if self._latest_for < 1:  # what is loaded has to last until it is used
            raise checks.bad("latest_for", latest_for, "must be at least 1 second")
        self._known: dict[object, _Known] = {}
        self._unknown: dict[object, _Known] = {}
        """The errors of unusable schemas, the oldest first."""
        self._running: dict[object, asyncio.Future[SinkError | None]] = {}
        self._is_down = False

    # -- what codecs use -----------------------------------------------------------------------------

    def known(self, key: object, load: Callable[[], Awaitable[Any]], *, keeps: bool = True) -> Any:
        """Return the cached value of `key`. Does not suspend; blocks a thread without a loop.

        Raises `NotLoaded`, whose `load` calls the function, and the `PermanentError` of an earlier
        call. `keeps` is whether the value is valid forever, and not only for `latest_for`.
        """
        found = self._known.get(key)
        if found is not None and (found.until == math.inf or _is_valid(found)):
            return found.value
        found = self._unknown.get(key)
        if found is not None and _is_valid(found):
            raise copy.copy(found.value)
        loading = partial(self._once, key, load, keeps=keeps)
        if running_loop() is None:
            asyncio.run(loading())
            return self._known[key].value
        told = (
            f"a schema of {self!r} is not loaded; call the codec in a step, a transform, a handler "
            "or a function of a sink, or with `await registry.call(function, argument)`"
        )
        raise NotLoaded(told, loading)

    async def fetch(self, path: str, kind: str) -> Schema:
        """The schema at a path such as `/schemas/ids/7`, with its references. Raises
        `PermanentError` if there is none, or if it is not of this kind.
        """
        try:
            found = await self._schema(path, {})
        except _Unknown as error:
            raise PermanentError(f"{self!r} does not know the schema {path}") from error
        if found.kind != kind:
            raise PermanentError(f"{self!r}: the schema {path} is {found.kind}, not {kind}")
        return found

    async def latest_id(self, subject: str, kind: str) -> int:
        """The id of a subject's latest version. Raises `RefusedError` if there is none, or one of
        another kind.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        try:
            answer = await self._request("GET", path)
        except _Unknown as error:
            repair = f"register a schema for the subject {subject!r}, or pass auto_register=True with a schema"
            raise self._refusal(f"no subject {subject!r}", repair) from error
        if (found := _kind(answer)) != kind:
            repair = f"encode with the codec for {found}, or write to another subject"
            raise self._refusal(f"the subject {subject!r} has {found} schemas", repair)
        return cast("int", _checked(answer, "id", int))

    async def id_of(self, subject: str, schema: Schema, *, registers: bool) -> int:
        """The id of a schema in a subject, which is registered if it is missing and `registers` is
        true. Raises `RefusedError` otherwise, and if it is incompatible with earlier versions.
        """
        path = f"/subjects/{quote(subject, safe='')}"
        told = f"the given schema is not registered for the subject {subject!r}"
        repair = "register it, pass auto_register=True, or omit the schema to use the latest"
        if registers:
            try:
                answer = await self._request("POST", f"{path}/versions", schema.body)
                return cast("int", _checked(answer, "id", int))
            except _Unknown as error:  # or another process has registered it at the same time
                told = f"the schema for {subject!r} is refused: {error}"
                repair = "change the schema, or the compatibility level of the subject"
        try:
            answer = await self._request("POST", f"{path}?normalize=true", schema.body)
        except _Unknown as error:
            raise self._refusal(told, repair) from error
        return cast("int", _checked(answer, "id", int))

    # -- requests ------------------------------------------------------------------------------------

    async def _once(self, key: object, load: Callable[[], Awaitable[Any]], *, keeps: bool) -> None:
        flight = (asyncio.get_running_loop(), key)
        while (running := self._running.get(flight)) is not None:
            await asyncio.wait([running])
            if not running.cancelled():
                if (error := running.result()) is not None:
                    raise copy.copy(error)
                return
        running = self._running[flight] = flight[0].create_future()
        try:
            value = await load()
        except PermanentError as error:
            while len(self._unknown) >= _UNKNOWN_MOST:
                self._unknown.pop(next(iter(self._unknown)), None)
            # a copy has no traceback, and so keeps nothing alive
            until = LOOP_CLOCK.wall_time() + _UNKNOWN_FOR
            self._unknown[key] = _Known(copy.copy(error), until)
            running.set_result(error)
            raise copy.copy(error) from error
        except SinkError as error:
            running.set_result(error)
            raise
        except BaseException:
            running.cancel()
            raise
        else:
            until = math.inf if keeps else LOOP_CLOCK.wall_time() + self._latest_for
            self._known[key] = _Known(value, until)
            running.set_result(None)
        finally:
            del self._running[flight]

    async def _schema(self, path: str, seen: dict[str, Schema]) -> Schema:
        if path not in seen:
            if len(seen) > _MAX_REFERENCES:
                raise PermanentError(
                    f"{self!r}: the schema has more than {_MAX_REFERENCES} references"
                )
            seen[path] = Schema("", "")  # a reference to itself ends here
            seen[path] = await self._with_references(await self._request("GET", path), seen)
        return seen[path]

    async def _with_references(self, answer: Mapping[str, Any], seen: dict[str, Schema]) -> Schema:
        given = tuple(cast("list[Mapping[str, Any]]", answer.get("references") or ()))
        references: list[Reference] = []
        for each in given:
            subject, version = _checked(each, "subject", str), _checked(each, "version", int)
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            schema = await self._schema(path, seen)
            references.append(Reference(_checked(each, "name", str), schema))
        return Schema(_kind(answer), _checked(answer, "schema", str), tuple(references), given)

    async def _request(self, method: str, path: str, body: object = None) -> Mapping[str, Any]:
        """Return the JSON object of a response. Raises `_Unknown`, and otherwise the errors of an
        outage, which are logged once.
        """
        answer: Mapping[str, Any] | _Unknown
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._timeout):
                answer = await self._exchange(method, path, body)
        except TimeoutError as error:
            told = f"no answer from {self._endpoint.place} within {self._timeout:g} s"
            late = UnavailableError(told)
            self._log(late)
            raise late from error
        except SinkError as error:
            self._log(error)
            raise
        if self._is_down:
            self._is_down = False
            log_safely(logger, logging.INFO, _UP, self)
        if isinstance(answer, _Unknown):
            raise answer
        return answer

    def _log(self, error: SinkError) -> None:
        if not self._is_down:
            self._is_down = True
            level = logging.ERROR if isinstance(error, RefusedError) else logging.WARNING
            log_safely(logger, level, _DOWN, self, for_log(error))

    async def _exchange(self, method: str, path: str, body: object) -> Mapping[str, Any] | _Unknown:
        headers = dict(self._endpoint.headers)
        if (auth := self._endpoint.auth) is not None:
            headers["authorization"] = auth if isinstance(auth, str) else await _token(auth)
        secrets = Secrets(headers, self._access.url, self._access.client_options)
        parts = urlsplit(self._access.url)
        own, _, query = path.partition("?")
        query = "&".join(filter(None, (parts.query, query)))
        url = parts._replace(path=parts.path.rstrip("/") + own, query=query).geturl()
        client = await self._client()
        try:
            content = b"" if body is None else json.dumps(body).encode()
            async with client.stream(
                method, url, content=content, headers=headers, follow_redirects=False
            ) as answer:
                text = await whole_body(answer, _MAX_BYTES)
            return self._object(answer.status_code, answer.headers, text, secrets)
        except Exception as error:
            found = for_transport(error, self._endpoint.place, secrets.redact)
            if isinstance(
                found, UnknownOutcomeError
            ):  # nothing depends on it: requests are repeated
                name = type(error).__name__
                found = UnavailableError(f"no answer from {self._endpoint.place} ({name})")
            if found is error:
                raise
            raise caused(found, error)  # noqa: B904  # the cause is set
        finally:
            within = close_within(self._endpoint.close_timeout)
            with suppress(TimeoutError):
                async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + within):
                    await client.aclose()

    def _object(
        self, status: int, headers: Mapping[str, str], text: bytes, secrets: Secrets
    ) -> Mapping[str, Any] | _Unknown:
        try:
            answer: object = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        found = cast("dict[str, Any]", answer) if isinstance(answer, dict) else None
        if 200 <= status < 300:
            if found is None:
                raise self._refusal("the answer is not that of a registry", "correct the URL")
            return found
        code = (found or {}).get("error_code")
        if status in {404, 409, 422} and code in _UNKNOWN:
            return _Unknown(shorten(secrets.redact(str((found or {}).get("message", "")))))
        if status == 429:
            delay = seconds_of(headers, LOOP_CLOCK.wall_time())
            raise ThrottledError(f"HTTP 429 from {self._endpoint.place}", retry_after=delay)
        if status >= 500 or status == 408:
            raise UnavailableError(f"HTTP {status} from {self._endpoint.place}")
        if status in REFUSALS:
            raise for_status(status, self._endpoint.place, "", None)
        raise self._refusal(f"HTTP {status}", "correct the URL, or what the registry refuses")

    def _refusal(self, told: str, repair: str) -> RefusedError:
        return RefusedError(f"{self._endpoint.place}: {told}", repair=repair)

    async def _client(self) -> Any:
        if (factory := self._access.client) is not None:
            made = factory()
            return await made if inspect.isawaitable(made) else made
        import httpx  # an optional dependency

        options = self._endpoint.client_options
        return await asyncio.to_thread(lambda: httpx.AsyncClient(**options()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._access, self._timeout, self._latest_for)

    def __repr__(self) -> str:
        return f"SchemaRegistry({addresses.place(urlsplit(self._access.url))})"


def _is_valid(found: _Known) -> bool:
    return found.until >= LOOP_CLOCK.wall_time()


async def _token(auth: Callable[[], str | Awaitable[str]]) -> str:
    """The `Authorization` header from a function. A failure of it is an outage."""
    try:
        given = auth()
        return header_value("auth()", await given if inspect.isawaitable(given) else given)
    except Exception as error:
        repair = "repair the function given as auth=, or the service that it calls"
        told = f"no credentials: auth() failed with {type(error).__name__}"
        raise RefusedError(told, repair=repair) from error


def _checked(answer: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """A part of a response. Raises `UnavailableError` for one that no registry sends."""
    value = answer.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UnavailableError(f"the registry's answer has no {name!r}")
    return value


def _kind(answer: Mapping[str, Any]) -> str:
    return str(answer.get("schemaType") or "AVRO")
