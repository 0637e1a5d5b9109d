"""The target of a replay: a stack of sinks, or a consumer's handler."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..named import UseError, named, named_sink
from .handling import named_handler, record_of
from .replay import ReplayRules, item_of

if TYPE_CHECKING:
    import argparse

    from ..._core.sink import Sink

BATCH_SIZE = 500


def target_of(options: argparse.Namespace) -> tuple[Sink[Any], ReplayRules]:
    """Return the named sink and the rules for it. Raises `UseError` and `ConfigError`."""
    if options.handler is None:
        decode = None if options.decode is None else named(options.decode)
        rules = ReplayRules(
            batch_size=options.batch_size or BATCH_SIZE,
            item_of=partial(item_of, decode),
            twice=options.at_least_once,
            any_order=options.any_order,
        )
        return named_sink(options.to), rules
    if options.decode is not None:
        raise UseError("--decode needs --to; name with_steps(handler, decode(...)) instead")
    if options.at_least_once:
        raise UseError("--at-least-once needs --to: a handler receives such letters anyway")
    # one at a time: a crash leaves one letter in doubt, and a handler has no write keys
    rules = ReplayRules(
        batch_size=options.batch_size or 1,
        item_of=record_of,
        twice=True,
        any_order=options.any_order,
    )
    return named_handler(options.handler), rules
