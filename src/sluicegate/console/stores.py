"""A store of dead letters that the console shows, and where its letters are sent again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .._core.checks import bad
from .._core.stacking import as_sink
from .._core.text import hide
from ..cli.dlq.arguments import is_dsn, store_of
from ..cli.dlq.replay import ReplayRules, item_of
from ..cli.dlq.target import BATCH_SIZE, HandlerSink, record_of
from ..consumer.handling.handlers import as_handler
from ..letters.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .._core.sink import Sink, SinkLike
    from ..letters.store import Store


@dataclass(frozen=True, kw_only=True)
class LetterStore:
    """A store of dead letters in the console, and the target of its replays.

    Args:
        store: as in `sluicegate dlq`: the path of a file written by `FileSink`, or a PostgreSQL DSN.
        name: its name in the console; default: `store` without user, password and
            options.
        table: the table, with PostgreSQL; default `"dead_letters"`.
        schema: the table's schema; default: found by the search path.
        sink: a sink, or a function of a batch, to which letters are sent again.
        handler: instead of a sink, the handler of the consumer that wrote the letters: a function
            of one message.
        decode: with a sink, a function that converts decoded JSON into an item.

    Without `sink` and `handler` the console shows the command that replays. Raises `ConfigError`
    for a bad argument.
    """

    store: str | Path = field(kw_only=False, repr=False)
    name: str = ""
    table: str = "dead_letters"
    schema: str | None = None
    sink: SinkLike[Any] | None = None
    handler: Callable[[Any], object] | None = None
    decode: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        name = hide(str(self.store))
        if not isinstance(cast("object", self.store), (str, Path)):
            raise bad("store", name, "must be a path, a DSN or a URL")
        try:
            closed_store(self)
        except StoreError as error:
            raise bad("store", name, f"must be a store of dead letters: {error}") from None
        if self.handler is not None and (self.sink is not None or self.decode is not None):
            raise bad("handler", self.handler, "must not be given with sink or decode")
        target_of(self)
        if not self.name:
            object.__setattr__(self, "name", _shown(str(self.store)))


def stores_by_name(stores: Collection[LetterStore | str | Path]) -> dict[str, LetterStore]:
    """Return the stores by name. Raises `ConfigError` for a name of two."""
    if isinstance(stores, (str, Path)):
        raise bad("letters", hide(str(stores)), "must be a collection of stores")
    found: dict[str, LetterStore] = {}
    for each in stores:
        made = each if isinstance(each, LetterStore) else LetterStore(each)
        if made.name in found:
            raise bad("letters", made.name, "must have different names")
        found[made.name] = made
    return found


def closed_store(store: LetterStore) -> Store:
    """Return the store, not opened. Raises `StoreError`."""
    return store_of(str(store.store), store.table, store.schema)


def target_of(store: LetterStore) -> tuple[Sink[Any], ReplayRules] | None:
    """Return the target of replays, and the rules for it."""
    if store.sink is not None:
        rules = ReplayRules(
            batch_size=BATCH_SIZE, item_of=partial(item_of, store.decode), twice=False
        )
        return as_sink(store.sink), rules
    if store.handler is not None:
        rules = ReplayRules(batch_size=1, item_of=record_of, twice=True)
        return HandlerSink(as_handler(store.handler, "handler")), rules
    return None


def _shown(name: str) -> str:
    """Return a store's name without user, password and options of a URL."""
    place, _, options = name.partition("?")
    if "://" not in name:
        return hide(name)
    scheme, _, rest = place.partition("://")
    # an @ behind the question mark may end a password, of which that mark is a part
    return hide(name) if "@" in options else f"{scheme}://{rest.rpartition('@')[2]}"


def command_of(store: LetterStore, *options: str) -> str:
    """Return the command that sends letters again; a DSN without its password."""
    place = [f"--table={store.table}"] * is_dsn(str(store.store))
    place += [f"--schema={store.schema}"] * (store.schema is not None)
    place += ["--to", "MODULE:NAME"]
    return shlex.join(["sluicegate", "dlq", "replay", _shown(str(store.store)), *place, *options])


def kind_of(store: LetterStore) -> str:
    """A word for it."""
    return "table" if is_dsn(str(store.store)) else "file"
