"""Admission of requests to the console.

1. The header `Host` must be a known name, so that a page with a rebound DNS name is refused. With
   `authorize`, the application around the console decides that.
2. With `authorize`, that function admits. Otherwise a token admits, by a session: the browser has a
   random id in a cookie, and never the token. Without a token, only loopback is answered.
3. Each form has a token, derived from the session's cookie by a secret of this process. A form
   without it, or of another session, is refused; so is one from another site, by `Origin` and
   `Sec-Fetch-Site`. A page without a referrer sends `Origin: null`, which is admitted as long as
   the browser does not call it cross-site.
4. Sessions end with the process, and after `LASTS` seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import ClientDisconnect

from ..consumer.operating.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from starlette.requests import Request
    from starlette.responses import Response

Authorize: TypeAlias = "Callable[[Request], bool | str | Awaitable[bool | str]]"
"""Returns whether a request is admitted, or the name of its user."""
Form: TypeAlias = "ImmutableMultiDict[str, str]"

LASTS = 12 * 3600.0
"""Seconds of a session after its login."""
MAX_BODY = 64 * 1024
"""Maximum size of a form in bytes."""
MOST_FIELDS = 2_000
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_SESSION = re.compile(r"[\w-]{43}")
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""The headers of every response."""


class Refused(Exception):
    """A request that is refused, with the text of its page."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.title = title
        self.text = text


class NoSession(Refused):
    """A request without a session, which needs a login."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The browser of a request."""

    session: str
    csrf: str
    """The token of its forms."""
    user: str = ""


class Door:
    """Admits requests."""

    def __init__(
        self, *, token: str | None, authorize: Authorize | None, hosts: Collection[str]
    ) -> None:
        self._authorize = authorize
        self._guard = Guard(token)
        self._hosts = None if authorize is not None else {*LOCAL_NAMES, *map(str.lower, hosts)}
        self._secret = secrets.token_bytes(32)
        self._cookie = f"sluicegate_{secrets.token_hex(4)}"  # consoles on other ports share the jar
        self._sessions: dict[str, float] = {}
        self.has_login = token is not None and authorize is None

    # -- requests ----------------------------------------------------------------------------------

    def check_host(self, request: Request) -> None:
        """Raise `Refused` if the request names a host that is not known."""
        host = _host_of(request.headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            raise Refused(
                421,
                "Unknown host",
                "This console does not answer for that host name. Open it by localhost, or name the "
                "host: hosts= of Console, or --allow-host of sluicegate console.",
            )

    def stranger(self, request: Request) -> Visitor:
        """Return the browser of a request, admitted or not."""
        session = request.cookies.get(self._cookie, "")
        if _SESSION.fullmatch(session) is None:
            session = secrets.token_urlsafe(32)
        return self._visitor(session)

    async def admit(self, request: Request) -> Visitor:
        """Return the browser of an admitted request. Raises `Refused`."""
        visitor = self.stranger(request)
        if self._authorize is not None:
            found = self._authorize(request)
            user = await found if inspect.isawaitable(found) else found
            if not user:
                raise Refused(403, "Not allowed", "You have no right to use this console.")
            return self._visitor(visitor.session, user if isinstance(user, str) else "")
        if self.has_login:
            if self._sessions.get(visitor.session, 0.0) <= _now():
                raise NoSession(401, "Login needed", "Log in with the token of the console.")
            return visitor
        refusal = self._guard.refusal(_without_origin(request))
        if refusal is not None:
            text = f"{refusal.text.split('. ')[0].partition(': ')[2]}."
            repair = "Open it on the host itself, or start it with a token."
            raise Refused(403, "Only for this host", f"{text[0].upper()}{text[1:]} {repair}")
        return visitor

    async def form(self, request: Request, visitor: Visitor) -> Form:
        """Return the fields of a form of this visitor. Raises `Refused` for a forged one."""
        _check_origin(request)
        form = await _fields_of(request)
        given = form.get("csrf", "").encode()
        if not hmac.compare_digest(given, visitor.csrf.encode()):
            raise Refused(
                403,
                "Form refused",
                "This form is not from this console, or its session has ended. Go back, reload the "
                "page and try again. Nothing was changed.",
            )
        return form

    # -- sessions ----------------------------------------------------------------------------------

    def log_in(self, token: str) -> Visitor | None:
        """Return a visitor with a new session; `None` if the token is wrong."""
        given = b"Bearer " + token.strip().encode()
        if self._guard.refusal({"headers": [(b"authorization", given)]}) is not None:
            return None
        now = _now()
        self._sessions = {each: end for each, end in self._sessions.items() if end > now}
        visitor = self._visitor(secrets.token_urlsafe(32))
        self._sessions[visitor.session] = now + LASTS
        return visitor

    def log_out(self, visitor: Visitor) -> None:
        """End a session."""
        self._sessions.pop(visitor.session, None)

    def keep(self, request: Request, response: Response, visitor: Visitor) -> None:
        """Store the session in the browser, unless it has it."""
        if request.cookies.get(self._cookie) != visitor.session:
            response.set_cookie(
                self._cookie,
                visitor.session,
                path=request.scope.get("root_path") or "/",
                secure="https" in {request.url.scheme, request.headers.get("x-forwarded-proto")},
                httponly=True,
                samesite="strict",
            )

    def _visitor(self, session: str, user: str = "") -> Visitor:
        text = f"{session}\0{user}".encode()
        return Visitor(session, hmac.new(self._secret, text, hashlib.sha256).hexdigest(), user)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _host_of(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _without_origin(request: Request) -> dict[str, Any]:
    """Return the scope as the guard sees it: forms are checked by `_check_origin`."""
    headers = [each for each in request.scope["headers"] if each[0].lower() != b"origin"]
    return {**request.scope, "headers": headers}


def _check_origin(request: Request) -> None:
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin", "null")
    own = request.headers.get("host", "")
    if site not in {"same-origin", "none"} or (
        origin != "null" and origin.partition("://")[2] != own
    ):
        raise Refused(
            403, "Form refused", "This form comes from another site. Nothing was changed."
        )


async def _fields_of(request: Request) -> Form:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "Form refused", "Send a form of the console.")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                raise Refused(413, "Form too large", f"A form has at most {MAX_BODY:,} bytes.")
    except ClientDisconnect:
        raise Refused(400, "Form refused", "The form is not complete.") from None
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS
        )
    except ValueError:
        raise Refused(400, "Form refused", "The form cannot be read.") from None
    return ImmutableMultiDict(pairs)
