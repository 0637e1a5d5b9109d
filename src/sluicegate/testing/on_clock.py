"""Async tests and fixtures on a fake clock, alongside any other plugin for async tests.

1. A test runs on its clock's virtual loop, never on a loop of another plugin, on which its time
   would be real. If that is not possible, the test fails with the reason.
2. Other plugins act on coroutine functions. So those of a test with a fake clock are replaced by
   plain functions before other plugins see them, in the outermost hook of each kind.
3. An async fixture of the test's own scope also runs on the clock. A fixture of a wider scope, or
   with a wider loop scope of pytest-asyncio, stays on the loop of its plugin, because it must
   outlive the clock.
4. A context variable that an async fixture sets keeps its value until the end of the test.
"""

from __future__ import annotations

import inspect
import unittest
from contextlib import contextmanager
from contextvars import Context, ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any

import pytest

from .clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

CLOCK = pytest.StashKey[FakeClock]()
FAILED = pytest.StashKey[bool]()
_FUNCTION = pytest.StashKey[Any]()
_RAN = pytest.StashKey[bool]()

_ELSEWHERE = (
    "this test uses fake_clock, but another plugin ran it on its own loop, in real time: "
    "disable that plugin for it"
)
_UNITTEST = (
    "fake_clock cannot run a test of unittest.IsolatedAsyncioTestCase, which makes its own "
    "loop: write the test as a function or in a plain class, or call FakeClock().run(...) in a "
    "unittest.TestCase"
)
_BACKEND = (
    "fake_clock runs on asyncio only, not on {}: override the fixture anyio_backend to return "
    "'asyncio'"
)


def clock_of(item: pytest.Item) -> FakeClock | None:
    """Return the fake clock that a test uses, directly or through a fixture."""
    arguments: dict[str, Any] = getattr(item, "funcargs", None) or {}
    clock = arguments.get("fake_clock", item.stash.get(CLOCK, None))
    return clock if isinstance(clock, FakeClock) else None


# -- tests -----------------------------------------------------------------------------------------


def remember_function(item: pytest.Item) -> None:
    """Keep the test's own coroutine function, which other plugins are about to wrap.

    Fails the test if its class runs it on another loop.
    """
    if clock_of(item) is None or not isinstance(item, pytest.Function):
        return
    if isinstance(item.instance, unittest.IsolatedAsyncioTestCase):
        pytest.fail(_UNITTEST, pytrace=False)
    item.stash[_RAN] = False
    holder, name = _place(item)
    item.stash[_FUNCTION] = getattr(holder, name)


def check_that_it_ran(item: pytest.Item) -> None:
    """Fail an async test that did not run on its clock."""
    function = item.stash.get(_FUNCTION, None)
    if inspect.iscoroutinefunction(function) and not item.stash[_RAN]:
        pytest.fail(_ELSEWHERE, pytrace=False)


@contextmanager
def put_on_clock(item: pytest.Function, clock: FakeClock) -> Iterator[None]:
    """Make the coroutine function of a test run on the clock."""
    function = item.stash.get(_FUNCTION, None)
    if not inspect.iscoroutinefunction(function):
        yield
        return
    _check_backend(item)

    def on_clock(*args: Any, **kwargs: Any) -> None:
        item.stash[_RAN] = True
        clock.run(function(*args, **kwargs))

    holder, name = _place(item)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, name, on_clock)
        yield


def _place(item: pytest.Function) -> tuple[Any, str]:
    """Find the attribute with the test's function: Hypothesis calls an inner one."""
    handle = getattr(item.obj, "hypothesis", None)
    return (item, "obj") if handle is None else (handle, "inner_test")


def _check_backend(item: pytest.Function) -> None:
    backend: Any = item.funcargs.get("anyio_backend", "asyncio")
    name = backend if isinstance(backend, str) else backend[0]
    if name != "asyncio":
        pytest.fail(_BACKEND.format(name), pytrace=False)


# -- fixtures --------------------------------------------------------------------------------------


def belongs_on_clock(definition: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> bool:
    """Return whether an async fixture is set up only for one test, which has a fake clock."""
    function = definition.func
    if definition.scope != "function" or "fake_clock" not in request.fixturenames:
        return False
    if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
        return False
    return "fake_clock" in definition.argnames or _loop_scope(function, request.config) in {
        "",
        "function",
        "fixture-scope",
    }


def _loop_scope(function: object, config: pytest.Config) -> str:
    """Return the loop scope of an async fixture under pytest-asyncio; empty without it."""
    own = getattr(getattr(function, "__func__", function), "_loop_scope", None)
    if own is None and config.pluginmanager.has_plugin("asyncio"):
        own = config.getini("asyncio_default_fixture_loop_scope")
    return own or ""


def as_plain_function(
    function: Callable[..., Any], clock: FakeClock, request: pytest.FixtureRequest
) -> Callable[..., Any]:
    """Convert the async function of a fixture to a plain function that runs on the clock."""
    instance = request.instance
    if instance is not None and inspect.ismethod(function):
        bound = function.__func__.__get__(instance)  # the collector owns the instance
    else:
        bound = function

    def set_up(**arguments: Any) -> Any:
        context = copy_context()
        try:
            if not inspect.isasyncgenfunction(bound):
                return clock.run(bound(**arguments), context=context)
            made = bound(**arguments)
            value = clock.run(_next(made), context=context)
            request.addfinalizer(lambda: clock.run(_finish(made), context=context))
            return value
        except BaseException:
            request.node.stash[FAILED] = True
            raise
        finally:
            request.addfinalizer(_adopt(context))

    return set_up


async def _next(made: AsyncGenerator[Any, None]) -> Any:
    return await anext(made)


async def _finish(made: AsyncGenerator[Any, None]) -> None:
    try:
        await anext(made)
    except StopAsyncIteration:
        return
    await made.aclose()
    raise ValueError("an async fixture may yield only once")


def _adopt(context: Context) -> Callable[[], None]:
    """Adopt the variables that were set in `context`; return a function that resets them."""
    missing = object()
    tokens: list[tuple[ContextVar[Any], Token[Any]]] = [
        (variable, variable.set(value))
        for variable, value in context.items()
        if variable.get(missing) is not value
    ]

    def reset() -> None:
        while tokens:
            variable, token = tokens.pop()
            variable.reset(token)

    return reset
