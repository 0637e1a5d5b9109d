"""`sluicegate spool`: findings on standard output, messages and progress on standard error.

1. `stat`, `list` and `export` change nothing. An open spool answers by its owner; the files of a
   closed one are read.
2. `check` and `replay` take the locks of the spool, so they need a closed one.
3. `replay` stores items at the end of the spool before it removes the parked ones: interrupted, it
   may repeat the last of them.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._core.clock import LOOP_CLOCK
from ..._core.errors import SluicegateError
from ..._core.logs import for_log
from ..._core.text import text_of
from ...flow.spooling.looks import DeadStore
from ...flow.spooling.owner import Lock, turn
from ...flow.spooling.running import refusal
from ...flow.spooling.segment import DAMAGED, Encoded
from ...flow.spooling.spool import SEGMENT
from ...flow.spooling.store import Store, Work
from ...letters.text import as_json, printable, without_secrets
from ..console import BAD_USE, FAILED, OK, UseError, encodable, say
from ..parser import Group, count
from .view import check_folder, viewed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import TextIO

    from ...flow.spooling.parked import ParkedItem
    from ..parser import Parser
    from .view import View

SAY_EVERY = 100_000
"""Number of items between two lines of progress."""
_PAGE = 100
_WIDTH = 60
_FILES = "{:45}  {:>12}  {:>12}  {:>10}  {:>12}  {}"
_COMMANDS = {
    "stat": "print the number, size and age of the items, the files, and the owner",
    "list": "print one line per item",
    "export": "write the items to a file, as lines of JSON",
    "check": "check every file and every item; exit with 1 if something is wrong",
    "replay": "move parked items back to the end of the spool, which sends them again",
}
_EXAMPLES = {"list": " --parked", "export": " items.jsonl", "replay": " --offset 4711"}


def spool(options: argparse.Namespace) -> int:
    """Run a sub-command; return the exit code.

    0, 1 if something is damaged, 2 for bad use or a refusal.
    """
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "stat": _stat,
        "list": _list,
        "export": _export,
        "check": _check,
        "replay": _replay,
    }
    try:
        return commands[options.spool_command](options)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except sqlite3.DatabaseError as error:
        say(f"{options.path}: {for_log(error)}; `sluicegate spool check` names the damaged files")
        return FAILED
    except (UseError, SluicegateError, OSError) as error:
        text = text_of(error)
        say(without_secrets(text) if isinstance(error, OSError) else text)
        return BAD_USE


# -- looks -----------------------------------------------------------------------------------------


def _stat(options: argparse.Namespace) -> int:
    with viewed(options.path) as view:
        found = view.numbers()
    oldest = found.pop("oldest_at")
    found["oldest_seconds"] = (
        max(0.0, LOOP_CLOCK.wall_time() - oldest / 1000) if found["items"] else None
    )
    if options.json:
        print(as_json(found, encoding=sys.stdout.encoding, indent=2))
    else:
        for line in _stat_lines(found):
            print(encodable(printable(line)))
    return FAILED if found["unreadable"] else OK


def _stat_lines(found: dict[str, Any]) -> Iterator[str]:
    age = found["oldest_seconds"]
    old = "" if age is None else f", the oldest {age:.0f} s old"
    yield f"{found['items']} items in {found['bytes']} bytes{old}; {found['parked']} parked"
    owners = [f"{role}: process {owner}" for role, owner in found["owner"].items() if owner]
    yield ", ".join(owners) or "no process has it open"
    if found["interrupted_batches"]:
        yield f"{found['interrupted_batches']} batches are being written, or were interrupted"
    yield _FILES.format("file", "first", "end", "unsettled", "bytes", "").rstrip()
    for file in found["files"]:
        kept = "" if file["kept_by"] is None else f"kept only by item {file['kept_by']}"
        numbers = (file[name] for name in ("first", "end", "unsettled", "bytes"))
        yield _FILES.format(file["file"], *numbers, kept).rstrip()
    yield from (f"{name} cannot be read: {why}" for name, why in found["unreadable"].items())
    yield from (f"{name} is damaged; what could be read was copied" for name in found["damaged"])


def _list(options: argparse.Namespace) -> int:
    show = "start" if options.values else "none"
    number = 0
    with viewed(options.path) as view:
        items = view.items(parked=options.parked, first=options.start, show=show)
        for item in islice(items, options.first):
            number += 1
            print(
                as_json(item, encoding=sys.stdout.encoding)
                if options.json
                else encodable(_line(item))
            )
        sys.stdout.flush()
    return _end(options, view, f"{number}")


def _line(item: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(item["at"] / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    parts = [f"{item['offset']:>8}", at, f"{item['size']:>8} bytes"]
    parts += ["damaged"] * ("damaged" in item)
    if "error_type" in item:
        parts += [f"{item['attempts']} attempts", item["error_type"], item["message"][:_WIDTH]]
    return printable("  ".join([*parts, *([item["start"]] if "start" in item else [])]))


def _export(options: argparse.Namespace) -> int:
    number = 0
    with viewed(options.path) as view, _output(options.file) as file:
        for item in view.items(parked=options.parked, show="all"):
            file.write(json.dumps(item, separators=(",", ":")) + "\n")
            number += 1
            if number % SAY_EVERY == 0:
                say(f"exported {number} items so far")
        file.flush()
    return _end(options, view, f"exported {number}")


def _end(options: argparse.Namespace, view: View, done: str) -> int:
    for name, why in view.unreadable.items():
        say(f"{name} cannot be read: {why}")
    say(f"{done} {'parked' if options.parked else 'unsettled'} items")
    return FAILED if view.unreadable else OK


@contextmanager
def _output(name: str) -> Generator[TextIO]:
    """Open a new file, which only its user may read; `-` is standard output."""
    if name == "-":
        yield sys.stdout
        return
    with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
        yield file


# -- with the locks --------------------------------------------------------------------------------


@contextmanager
def _owned(path: Path) -> Generator[Store]:
    """Own a closed spool; yield its files, not yet opened. Raises `ConfigError` if it is open."""
    check_folder(path)
    with ExitStack() as stack:
        with turn(path):
            for role in ("writer", "sender"):
                stack.callback(Lock(path, role).acquire().release)
        yield Store(path, writes=True, sends=True, durable=True, segment_bytes=SEGMENT)


def _check(options: argparse.Namespace) -> int:
    wrong = number = told = 0
    with _owned(options.path):
        store = DeadStore(options.path)
        try:
            store.open()
            for name, size, why in _findings(store):
                number += size
                if why:
                    wrong += 1
                    print(encodable(printable(f"{name}: {why}")))
                elif number >= told + SAY_EVERY:
                    told = number
                    say(f"checked {number} items so far")
        finally:
            store.close()
    for kept in sorted(options.path.glob(f"*{DAMAGED}")):
        say(
            f"{kept.name} was damaged earlier, and what could be read was copied; remove it when it "
            "is not needed any more"
        )
    say(f"checked {number} items: {wrong or 'nothing'} wrong")
    return FAILED if wrong else OK


def _findings(store: DeadStore) -> Iterator[tuple[str, int, str]]:
    """Yield the name and the items of each file when it is checked, and what is wrong with it."""
    for name, why in store.unreadable.items():
        yield name, 0, why
    for name, size, check in [
        *((each.path.name, each.end - each.first, each.check) for each in store.segments),
        (store.parked.path.name, 0, store.parked.check),
    ]:
        try:
            for why in check():
                yield name, 0, why
        except sqlite3.DatabaseError as error:
            yield name, 0, for_log(error)
        yield name, size, ""


def _replay(options: argparse.Namespace) -> int:
    """Move parked items, by default all, to the end of a closed spool."""
    with _owned(options.path) as store, closing(store):
        with turn(options.path):
            store.open()
        offsets = sorted({*options.offset})
        chosen = [
            each for at in offsets for each in store.parked.items(at, 1) if each.item.offset == at
        ]
        missing = {*offsets} - {each.item.offset for each in chosen}
        if missing:
            raise UseError(f"nothing was moved: no parked item is {min(missing)}")
        total = len(chosen) if offsets else store.parked.count()
        say(f"moving {total} parked items to the end of the spool")
        pages = [chosen] if offsets else _pages(store)
        for number, page in enumerate(pages, 1):
            _move(store, page)
            if number % (SAY_EVERY // _PAGE) == 0:
                say(f"moved {number * _PAGE} items so far")
    say(f"moved {total} items; they are sent when the spool is opened")
    return OK


def _pages(store: Store) -> Iterator[list[ParkedItem]]:
    while page := [*store.parked.items(0, _PAGE)]:  # those before it were moved
        yield page


def _move(store: Store, page: Sequence[ParkedItem]) -> None:
    now = int(LOOP_CLOCK.wall_time() * 1000)
    work = Work(puts=[Encoded(now, item.form, item.value, item.crc) for item, *_ in page])
    store.apply([work])
    if work.error is not None:
        raise refusal(work.error, store) from work.error
    store.parked.remove([item.offset for item, *_ in page])


# -- arguments -------------------------------------------------------------------------------------


def _options(parser: Parser) -> None:
    add = parser.accept_commands("spool_command")
    for name, text in _COMMANDS.items():
        example = f"sluicegate spool {name} spool/audit{_EXAMPLES.get(name, '')}"
        command = add(name, text, example)
        command.argument("path", "PATH", "the folder of the spool", type=Path)
        if name == "export":
            command.argument("file", "FILE", "a new file, or - for the output")
        if name in {"list", "export"}:
            command.flag("--parked", "the parked items instead")
        if name in {"stat", "list"}:
            command.flag("--json", "print JSON")
        if name == "list":
            command.argument("--first", "N", "at most N items", type=count)
            command.argument(
                "--from",
                "OFFSET",
                "only items from this offset on",
                type=_offset,
                default=0,
                dest="start",
            )
            command.flag("--values", "show how each value starts")
        if name == "replay":
            told = "only the parked item with this offset"
            command.several("--offset", "OFFSET", told, type=_offset)


def _offset(text: str) -> int:
    return 0 if text == "0" else count(text)


GROUP = Group(
    description=(
        "Inspect the spool of a batcher: its size, its items, its parked items. Export items, check "
        "the files, or send parked items again."
    ),
    example="sluicegate spool stat spool/audit",
    options=_options,
    run=spool,
    extras={},
)
