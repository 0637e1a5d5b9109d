"""Clean-ups never wait without a limit for a client of a server.

1. A clean-up is a `finally`, the handler of a cancellation, and a function that closes, such as
   `__aexit__`. Its calls of a client are awaited with `timeout=`, or inside a limit (`LIMITS`).
2. asyncpg's own `async with con.transaction()` rolls back without a limit, even in a cancelled task;
   `answers.transaction` has one.

`BOUNDED` names the calls that have a limit elsewhere. An entry that is not used is itself a
violation.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.layering.sources import Case, Rule, Sources, tree

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENTS = frozenset({"client", "con", "connection", "engine", "pool", "producer", "subscription"})
"""The names of variables and attributes for what talks to a server."""
CLOSING = frozenset({"__aexit__", "abort", "aclose", "close", "disconnect", "leave", "stop"})
LIMITS = frozenset({"answered", "bounded", "timeout_at"})
ELSEWHERE = frozenset({"sluicegate.testing"})

_CONFLUENT = "`ConfluentSession.close` waits for at most `close_timeout`"
_LETTERS = "`LetterConnection.close` has a limit"
_ANSWERED = "an `AnsweredConnection`, whose transactions have limits"
BOUNDED: dict[tuple[str, str], str] = {
    ("sluicegate.kafka.confluent.member", "self._client.close"): _CONFLUENT,
    (
        "sluicegate.kafka.confluent.member",
        "self._client.incremental_unassign",
    ): "it is local",
    ("sluicegate.postgres.letters.store", "self._connection.close"): _LETTERS,
    ("sluicegate.postgres.letters.store", "connection.close"): _LETTERS,
    ("sluicegate.postgres.letters.store", "connection.transaction"): _ANSWERED,
    ("sluicegate.postgres.records.access", "con.transaction"): _ANSWERED,
    ("sluicegate.postgres.schema.check", "con.transaction"): _ANSWERED,
    ("sluicegate.postgres.schema.installation", "con.transaction"): _ANSWERED,
    ("sluicegate.redis.connections", "connection.disconnect"): "with nowait it does not wait",
    ("sluicegate.redis.connections", "self._pool.release"): "it is local",
    ("sluicegate.nats.jetstream.partition", "subscription.unsubscribe"): (
        "it is written to a buffer, within `close_timeout` of the session"
    ),
}


def _client_call(node: ast.expr) -> ast.Call | None:
    """The call of a client's method, if it is one."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    owner = node.func.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return node if name.lstrip("_") in CLIENTS else None


def _is_limit(item: ast.withitem) -> bool:
    call = item.context_expr
    function = call.func if isinstance(call, ast.Call) else call
    return isinstance(function, ast.Attribute | ast.Name) and (
        (function.attr if isinstance(function, ast.Attribute) else function.id) in LIMITS
    )


def _ends_a_cancellation(handler: ast.ExceptHandler) -> bool:
    caught = "BaseException" if handler.type is None else ast.unparse(handler.type)
    return "BaseException" in caught or "CancelledError" in caught


def _found(node: ast.AST, *, cleaning: bool, limited: bool) -> Iterator[ast.Call]:
    """The calls of clients that a clean-up awaits without a limit."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        cleaning, limited = (
            getattr(node, "name", "").lstrip("_") in {each.lstrip("_") for each in CLOSING},
            False,
        )
    elif isinstance(node, ast.AsyncWith | ast.With):
        for item in node.items:
            call = _client_call(item.context_expr)
            if call is not None and ast.unparse(call.func).endswith(".transaction"):
                yield call
            limited = limited or _is_limit(item)
    elif isinstance(node, ast.Await) and cleaning and not limited:
        call = _client_call(node.value)
        if call is not None and not any(each.arg == "timeout" for each in call.keywords):
            yield call
    if isinstance(node, ast.Try):
        for each in (*node.body, *node.orelse):
            yield from _found(each, cleaning=cleaning, limited=limited)
        for handler in node.handlers:
            inside = cleaning or _ends_a_cancellation(handler)
            for each in handler.body:
                yield from _found(each, cleaning=inside, limited=limited)
        for each in node.finalbody:
            yield from _found(each, cleaning=True, limited=limited)
        return
    for child in ast.iter_child_nodes(node):
        yield from _found(child, cleaning=cleaning, limited=limited)


_CALLED = re.compile(rf"({'|'.join(sorted(CLIENTS))})\s*\.")
"""A module without it calls no client."""


def clean_ups_are_limited(known: Sources) -> list[str]:
    """A clean-up awaits a client with a limit."""
    found: list[str] = []
    used: set[tuple[str, str]] = set()
    for module, text in known.items():
        if module.startswith(tuple(ELSEWHERE)) or not _CALLED.search(text):
            continue
        for call in _found(tree(text), cleaning=False, limited=False):
            place = module, ast.unparse(call.func)
            if place in BOUNDED:
                used.add(place)
            else:
                told = f"{module}:{call.lineno}: waits for {place[1]} without a limit"
                found.append(told)
    unused = [place for place in BOUNDED if place[0] in known and place not in used]
    return found + [f"{module}: {name} is not awaited" for module, name in unused]


RULES: list[Rule] = [clean_ups_are_limited]
PLANTED: list[Case] = [
    (clean_ups_are_limited, {"sluicegate.new": text})
    for text in (
        "async def f(con):\n try: ...\n finally: await con.execute('ROLLBACK')",
        "async def f(self):\n try: ...\n except BaseException: await self._pool.release(1)",
        "class A:\n async def __aexit__(self, *_): await self._client.close()",
        "class A:\n async def close(self):\n  if self._con: await self._con.close()",
        "async def f(con):\n async with con.transaction(): ...",
    )
]
HARMLESS: list[Case] = [
    (clean_ups_are_limited, {"sluicegate.new": text})
    for text in (
        "async def f(con):\n try: ...\n finally: await con.close(timeout=5)",
        "async def f(con):\n try: ...\n except Exception: await con.execute('ROLLBACK')",
        "async def close(con):\n async with clock.timeout_at(1): await con.close()",
        "async def f(con):\n try: await con.execute('SELECT')\n finally: con.terminate()",
        "async def f(con):\n async with transaction(con): ...",
    )
]
