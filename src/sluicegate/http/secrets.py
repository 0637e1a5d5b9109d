"""Redaction of credentials and other secret values of a request in error messages.

1. A server may quote a request in its response: the request line with its query, headers, the
   decoded user and password, each percent-encoded, base64-encoded or escaped for JSON. Response text
   is searched for all these forms before it is kept.
2. A value of at least 6 characters is replaced everywhere. A shorter one is replaced only as a whole
   word, because replacing it inside words would make the message unreadable.
3. The forms are computed when a message is built, not for each request.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, cast
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from .._core.trace_context import TRACE_HEADERS

_HARMLESS = frozenset(
    {"accept", "accept-encoding", "content-encoding", "content-type", "user-agent"} | TRACE_HEADERS
)
_ANYWHERE = 6
"""Shortest text that is also replaced inside words."""
_SHORTEST = 4
"""Shortest query, header or cookie value that counts as secret; credentials count at any length."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
MASK = "***"


class Secrets:
    """The secret values of one request. `headers` are the request's, with names in lower case."""

    def __init__(
        self,
        headers: Mapping[str, str],
        url: str = "",
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._headers = headers
        self._url = url
        self._options = client_options or {}

    def redact(self, text: str) -> str:
        """`text` without secrets, control characters and lone surrogates. Never raises."""
        clean = _CONTROLS.sub("", text).encode(errors="replace").decode()
        return clean if self._pattern is None else self._pattern.sub(MASK, clean)

    def redact_beginning(self, text: str) -> str:
        """Redact truncated text. Its end may be the beginning of a secret, so its last characters
        are dropped, as many as the longest secret has.
        """
        return self.redact(text[: max(0, len(text) - max(map(len, self._forms), default=0))])

    @cached_property
    def _forms(self) -> list[str]:
        """Every form of every secret, longest first."""
        values = {value for value in self._values() if len(value) >= _SHORTEST} | {
            value for value in self._credentials() if value
        }
        return sorted({form for value in values for form in _forms(value)}, key=len, reverse=True)

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        if not self._forms:
            return None
        return re.compile("|".join(map(_expression, self._forms)))

    def _values(self) -> Iterator[str]:
        """Values that count as secret if they are long enough."""
        yield from (value for name, value in self._headers.items() if name not in _HARMLESS)
        yield from _query_values(self._url)
        for name in ("params", "cookies"):
            given = self._options.get(name)
            if isinstance(given, Mapping):
                yield from map(str, cast("Mapping[object, object]", given).values())
            elif isinstance(given, str):
                yield from _query_values(f"?{given}")

    def _credentials(self) -> Iterator[str]:
        """Passwords and tokens, which are secret at any length."""
        yield from _tokens(self._headers.get("authorization", ""))
        yield from _of_proxy(self._options.get("proxy"))


def _tokens(authorization: str) -> Iterator[str]:
    """The parts of an `Authorization` header, and the password of a base64-encoded `user:password`
    or `id:key`.
    """
    scheme, _, rest = authorization.partition(" ")
    for token in rest.split() or [scheme]:
        yield token
        try:
            decoded = base64.b64decode(token, validate=True).decode()
        except (binascii.Error, ValueError):
            continue
        user, colon, password = decoded.partition(":")
        if colon and decoded.isprintable():
            yield from _pair(user, password)


def _pair(user: str, password: str) -> Iterator[str]:
    yield f"{user}:{password}"
    yield password
    if len(user) >= _ANYWHERE:
        yield user


def _of_proxy(proxy: object) -> Iterator[str]:
    """The user and password of a proxy, given as a URL or as an `httpx.Proxy`."""
    pair = getattr(proxy, "auth", None)
    if isinstance(pair, tuple):
        user, password = map(str, cast("tuple[object, ...]", pair))
    else:
        try:
            parts = urlsplit(str(proxy or ""))
        except ValueError:
            return
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if user or password:
        yield base64.b64encode(f"{user}:{password}".encode()).decode()
        yield from _pair(user, password)


def _query_values(url: str) -> Iterator[str]:
    """The values in a URL's query, raw and decoded; a part without `=` counts as a value."""
    for part in urlsplit(url).query.split("&"):
        name, equals, value = part.partition("=")
        if not equals:
            name, value = "", part
        if name != "filter_path" and value not in {"true", "false"}:
            yield value
            yield unquote_plus(value)


def _forms(secret: str) -> Iterator[str]:
    """The forms in which a server may quote `secret`."""
    escaped = json.dumps(secret)[1:-1]
    encoded = secret.encode(errors="replace")
    percent = [quote(secret, safe=""), quote(secret), quote_plus(secret)]
    yield from (
        secret,
        escaped,
        json.dumps(secret, ensure_ascii=False)[1:-1],
        json.dumps(escaped)[1:-1],
        escaped.replace("/", "\\/"),
    )
    yield from percent
    yield from (re.sub(r"%..", lambda found: found[0].lower(), each) for each in percent)
    yield from (
        base64.b64encode(encoded).decode().rstrip("="),
        base64.urlsafe_b64encode(encoded).decode().rstrip("="),
    )
    yield from (html.escape(secret), html.escape(secret, quote=False), repr(secret)[1:-1])


def _expression(form: str) -> str:
    return re.escape(form) if len(form) >= _ANYWHERE else rf"(?<!\w){re.escape(form)}(?!\w)"
