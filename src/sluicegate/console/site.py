"""A request and its page, the flow of an action, and the pages of errors.

1. A page is an async function of a `Page` that returns a response, made by `Page.show`. `Site`
   admits the request first, and makes a page of every error.
2. An action changes something. A GET of its address only counts what it will change, and shows a
   form with the question. The POST of that form carries the filters and the count, and performs it.
   Its result is kept, and shown by a page of its own. A form is performed once: sent again, by a
   double click or the button Back, it leads to the same result. The filters are one encoded field,
   since browsers change the ends of lines in others.
3. An address is the mount path, the name of a page, and a query. Names of queues, keys and files
   are in the query, since they may contain anything.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from .._core.classify import code_of
from .._core.errors import ConfigError, RefusedError, SluicegateError, UnavailableError
from .._core.text import text_of
from ..letters.text import printable, without_secrets
from .door import HEADERS, Door, Form, NoSession, Refused, Visitor
from .format import FILTERS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from .contents import AdminT, Contents

Handler: TypeAlias = "Callable[[Page], Awaitable[Response]]"

HERE = Path(__file__).parent
MOST_RESULTS = 100
"""Maximum number of kept results of actions."""
TIMED_OUT = "57014"
"""The SQLSTATE of a statement timeout."""
logger = logging.getLogger("sluicegate.console")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an action would change, as counted now."""

    question: str
    """What the button does, with the number: `Retry 300 dead jobs of the queue mails?`"""
    count: int
    fields: Mapping[str, str]
    """The filters, which the confirmed form carries."""
    back: str
    """The address of the page to return to."""
    notes: Sequence[str] = ()
    """Consequences that the operator should know."""
    choices: Sequence[Choice] = ()
    """Further fields of the form."""


class Choice(NamedTuple):
    """A field of text in the form of an action."""

    name: str
    label: str
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of an action."""

    text: str
    """What was done, with the real number: `300 jobs were retried`."""
    count: int
    back: str
    lines: Sequence[str] = ()


@dataclass(slots=True)
class Result:
    """The result of a confirmed form."""

    session: str
    counted: int
    """The number when it was confirmed; -1 if it is unknown."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    done: Done | None = None
    """`None` while it is performed, and after an error."""

    async def perform(self, run: Callable[[], Awaitable[Done]]) -> Done | None:
        """Perform the action and return its result; `None` if that has been done before."""
        async with self.lock:
            if self.done is not None:
                return None
            self.done = await run()
            return self.done


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A change: how to count it, and how to perform it. Both get the fields of the request."""

    label: str
    plan: Callable[[Page, Form], Awaitable[Plan]]
    run: Callable[[Page, Form], Awaitable[Done]]
    is_destructive: bool = False


def action(
    label: str,
    plan: Callable[..., Awaitable[Plan]],
    run: Callable[..., Awaitable[Done]],
    *,
    is_destructive: bool = False,
    **which: Any,
) -> Action:
    """Return an action whose functions get these arguments, too."""
    return Action(
        label=label,
        plan=partial(plan, **which),
        run=partial(run, **which),
        is_destructive=is_destructive,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the console: its entry in the navigation, its pages and its actions."""

    title: str
    """Its name in the navigation, which leads to its first page."""
    pages: Mapping[str, Handler]
    """By name, which is the path."""
    is_shown: Callable[[Contents], bool]
    actions: Mapping[str, Action] = field(default_factory=dict[str, Action])

    @property
    def start(self) -> str:
        """The name of its first page."""
        return next(iter(self.pages))


class Page:
    """One admitted request."""

    def __init__(self, site: Site, request: Request, visitor: Visitor, name: str) -> None:
        self.site = site
        self.console = site.console
        self.request = request
        self.visitor = visitor
        self.name = name
        self.has_read = False
        """Whether the page has read from the database, and shows the result."""

    async def admin(self, kind: Callable[..., AdminT], *, changes: bool = False) -> AdminT:
        """Return an open `QueueAdmin`, `StreamAdmin` or the like, as `Database.admin`."""
        database = self.console.database
        if database is None:
            raise Refused(404, "No database", "This console was started without a database.")
        self.has_read = True
        return await database.admin(kind, changes=changes)

    def miss_database(self) -> None:
        """Note that the page is complete without what it wanted to read."""
        self.has_read = False

    def get(self, name: str) -> str | None:
        """Return a value of the query; `None` if it is missing or empty."""
        return self.request.query_params.get(name) or None

    def require(self, name: str) -> str:
        """Return a value of the query. Raises `Refused` if it is missing or empty."""
        return needed(self.request.query_params, name)

    @property
    def has_payload(self) -> bool:
        """Whether payloads were requested."""
        return self.get("payload") is not None

    def url(self, name: str, /, **query: object) -> str:
        """Return the address of a page; values that are `None` or empty are left out."""
        return _address(f"{self.request.scope.get('root_path', '')}/{name}", query)

    def act(self, action: str, /, **fields: object) -> str:
        """Return the address of the form of an action."""
        return self.url("act", do=action, **fields)

    def here(self, **changes: object) -> str:
        """Return the address of this page, with changes of its query."""
        return self.url(self.name, **{**self.request.query_params, **changes})

    def show(self, template: str, /, *, status: int = 200, **values: Any) -> Response:
        """Return the page of a template, which extends `base.html` and gets these values.

        `title` must be among them. With `live=True`, the block `live` is refreshed.
        """
        return self.site.show(self, template, status, values)


class Site:
    """The pages of a console."""

    def __init__(self, console: Contents, door: Door, sections: Sequence[Section]) -> None:
        self.console = console
        self.sections = [each for each in sections if each.is_shown(console)]
        self.actions = {name: each for part in self.sections for name, each in part.actions.items()}
        self.results: OrderedDict[str, Result] = OrderedDict()
        """The results of confirmed forms."""
        self._door = door
        self._down_since: datetime | None = None
        self._templates = Environment(
            autoescape=True,
            loader=FileSystemLoader(HERE / "templates"),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)
        pages = {name: page for each in self.sections for name, page in each.pages.items()}
        self._app = Starlette(
            routes=[
                Route("/login", self._log_in, methods=["GET", "POST"]),
                self._route("logout", self._log_out, method="POST"),
                Route("/act", self._endpoint("act", _ask), methods=["GET"]),
                Route("/act", self._endpoint("act", _act), methods=["POST"]),
                self._route("done", _done),
                *(self._route(name, page) for name, page in pages.items()),
                Mount("/static", StaticFiles(directory=HERE / "static")),
                Route("/{rest:path}", self._endpoint("nowhere", _nowhere)),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, with the headers of `door`."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_file = path.startswith("/static/")
        headers = {**HEADERS, "cache-control": "no-cache"} if is_file else HEADERS
        added = [(name.encode(), value.encode()) for name, value in headers.items()]

        async def send_with_headers(event: Any) -> None:
            if event["type"] == "http.response.start":
                event = {**event, "headers": [*event["headers"], *added]}
            await send(event)

        await self._app(scope, receive, send_with_headers)

    def show(self, page: Page, template: str, status: int, values: Mapping[str, Any]) -> Response:
        """Return the page of a template."""
        text = self._templates.get_template(template).render(
            {
                "page": page,
                "url": page.url,
                "act": page.act,
                "here": page.here,
                "read_only": self.console.read_only,
                "sections": self.sections,
                "has_login": self._door.has_login,
                "now": datetime.now(UTC),
                "live": False,
                **values,
            }
        )
        response = HTMLResponse(text, status)
        self._door.keep(page.request, response, page.visitor)
        return response

    # -- requests ----------------------------------------------------------------------------------

    def _route(self, name: str, handler: Handler, method: str = "GET") -> Route:
        return Route(f"/{name}", self._endpoint(name, handler), methods=[method])

    def _endpoint(self, name: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            page = Page(self, request, self._door.stranger(request), name)
            try:
                self._door.check_host(request)
                page = Page(self, request, await self._door.admit(request), name)
                response = await handler(page)
            except HTTPException:  # of `authorize`
                raise
            except Exception as error:
                is_page = request.method == "GET" and "hx-request" not in request.headers
                if isinstance(error, NoSession) and is_page:
                    return RedirectResponse(page.url("login"), 303)
                return self._error_page(page, error)
            if page.has_read:
                self._down_since = None
            return response

        return endpoint

    def _error_page(self, page: Page, error: Exception) -> Response:
        status, title, text = self._described(page, error)
        return page.show("error.html", status=status, title=title, text=text)

    def _described(self, page: Page, error: Exception) -> tuple[int, str, str]:
        """Return the status, the title and the text of the page of an error."""
        if isinstance(error, Refused):
            return error.status, error.title, error.text
        if not isinstance(error, SluicegateError):
            logger.error("the console could not answer %s", page.name, exc_info=error)
            text = f"{type(error).__name__}: the log of this process has the details."
            return 500, "The console failed", text
        text = printable(without_secrets(text_of(error)))
        if code_of(error) == TIMED_OUT:
            told = "The database did not finish a statement in time: a table is locked, or large."
            return 503, "Too slow", f"{told} Try again."
        if isinstance(error, ConfigError):
            return 400, "Not possible", text
        if isinstance(error, RefusedError) or not isinstance(error, UnavailableError):
            return 409, "Refused", text
        if not page.has_read or self.console.database is None:
            return 503, "Not reachable", text
        self._down_since = self._down_since or datetime.now(UTC)
        since = f"First noticed at {FILTERS['moment'](self._down_since)} UTC."
        repair = "Check the server and the network, then reload this page: the console connects again by itself."
        title = f"The database {self.console.database.place} does not answer"
        return 503, title, f"{text} {since} {repair}"

    async def form(self, page: Page) -> Form:
        """Return the form of a request. Raises `Refused` for a forged one."""
        return await self._door.form(page.request, page.visitor)

    async def _log_in(self, request: Request) -> Response:
        page = Page(self, request, self._door.stranger(request), "login")
        try:
            self._door.check_host(request)
            if not self._door.has_login:
                return RedirectResponse(page.url(""), 303)
            if request.method != "POST":
                return page.show("login.html", title="Log in", is_wrong=False, status=200)
            form = await self.form(page)
        except Refused as error:
            return self._error_page(page, error)
        visitor = self._door.log_in(form.get("token", ""))
        if visitor is None:
            logger.warning("a login to the console with a wrong token was refused")
            return page.show("login.html", title="Log in", is_wrong=True, status=403)
        response = RedirectResponse(page.url(""), 303)
        self._door.keep(request, response, visitor)
        return response

    async def _log_out(self, page: Page) -> Response:
        await self.form(page)
        self._door.log_out(page.visitor)
        return RedirectResponse(page.url("login"), 303)


# -- actions ---------------------------------------------------------------------------------------


def needed(form: Form, name: str) -> str:
    """Return a field. Raises `Refused` if it is missing or empty."""
    value = form.get(name)
    if not value:
        raise Refused(400, "Something is missing", f"The request needs {name}.")
    return value


def number_of(form: Form, name: str) -> int:
    """Return a field with a place, a position or an offset. Raises `Refused`."""
    text = needed(form, name)
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Refused(400, "No such number", f"{name} must be a number of at most 18 digits.")
    return int(text)


def _action(page: Page, form: Form) -> tuple[str, Action]:
    if page.console.read_only:
        raise Refused(403, "Read-only", "This console is read-only: it changes nothing.")
    name = needed(form, "do")
    if name not in page.site.actions:
        raise Refused(404, "No such action", f"There is no action {name!r}.")
    return name, page.site.actions[name]


async def _ask(page: Page) -> Response:
    """Show what an action would change, and the form that performs it."""
    form = page.request.query_params
    name, action = _action(page, form)
    plan = await action.plan(page, form)
    return page.show(
        "ask.html",
        title=action.label,
        action=action,
        name=name,
        plan=plan,
        fields=urlencode(plan.fields, errors="replace"),
        once=secrets.token_urlsafe(12),
    )


async def _act(page: Page) -> Response:
    """Perform an action, unless this form has been performed."""
    form = await page.site.form(page)
    name, action = _action(page, form)
    once, counted, results = needed(form, "once"), form.get("counted", ""), page.site.results
    is_number = counted.isascii() and counted.isdecimal() and len(counted) < 19
    given = Result(page.visitor.session, int(counted) if is_number else -1)
    found = results.setdefault(once, given)
    while len(results) > MOST_RESULTS:
        results.popitem(last=False)
    if found.session != page.visitor.session:
        raise Refused(403, "Form refused", "This form is of another session. Nothing was changed.")
    filters = parse_qsl(needed(form, "fields"), keep_blank_values=True)
    fields = ImmutableMultiDict([*form.multi_items(), *filters])
    done = await found.perform(lambda: action.run(page, fields))
    if done is not None:
        user = printable(page.visitor.user) or "an operator"
        logger.info("%s by the console: %s: %s", user, name, printable(done.text))
    return RedirectResponse(page.url("done", result=once), 303)


async def _done(page: Page) -> Response:
    """Show the result of an action."""
    found = page.site.results.get(page.require("result"))
    if found is None or found.done is None or found.session != page.visitor.session:
        raise Refused(404, "No such result", "This result is no longer kept, or is not yours.")
    return page.show("done.html", title="Done", done=found.done, counted=found.counted)


# -- errors ----------------------------------------------------------------------------------------


async def _nowhere(_: Page) -> Response:
    raise Refused(404, "No such page", "There is no page at this address.")


def _address(path: str, query: Mapping[str, object]) -> str:
    given = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path
