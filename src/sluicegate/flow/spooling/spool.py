"""A spool: items on disk, between the code that makes them and the destination."""

from __future__ import annotations

import math
import re
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ..._core import checks
from ..._core.errors import ClosedError, ConfigError
from ..._core.keywords import known_arguments
from ...consumer.options import Poison
from .encoding import Codec
from .folder import Settings, SpoolFolder
from .front import Front, Spill, Wait
from .sinks import SpoolSink
from .source import SpoolSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from ..._core.spooling import SpoolStats
    from ...batcher.setup import Setup
    from ..pipe import Pipe

Durability = Literal["commit", "os"]
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_LEAST_SEGMENT = 1 << 16
SEGMENT = 64 << 20
"""The default size of a file."""


@known_arguments()
class Spool:
    """Items on disk, in front of a destination. An accepted item survives the process.

    `Batcher(sink, spool=Spool(path))` stores each item before it is sent; the outcome of `deliver`
    is then `spooled`. The items are sent by a pipe in the same process, at least once and in the
    order of their keys, even after a restart. `sink` and `source` are the two ends for
    programs that only write or only send.

    Args:
        path: the folder. It is created; one process may write to it, and one may send from it.
        max_bytes: approximate maximum size on disk, in bytes: a number, or text such as `"2GiB"`.
            Default: none. A full spool makes producers wait, or refuses items, as `overflow` of the
            batcher says.
        max_items: the maximum number of unsettled items. Default: no limit.
        max_age: seconds after which an item is no longer sent but parked. Default: no limit.
        segment_bytes: the size of a file, which is deleted when all its items are settled. Default:
            64 MiB, or an eighth of `max_bytes` if that is less.
        sync_delay: seconds for which the first item waits for others to share one write to the
            disk; default 5 ms. It does not wait if no other item is on its way.
        seal_every: in a process that only writes, seconds after which the first item of a file is
            handed over to the process that sends. Closing hands over the remaining items.
        durability: `"commit"` (default): an item is stored once the disk has confirmed it. `"os"`:
            once the operating system has it, so that a kernel crash or a power cut may lose the
            last items.
        spill: which items are stored: `"always"` (default): every item. `"when_full"`: items are
            written from memory, and stored only while memory is full, or the destination does not
            accept writes or has a batch for half of a `flush_timeout`, and then until the sender
            has caught up. Items in memory are lost with the process; `add` and `deliver` return as
            without a spool. Items whose write was cut, or failed because the destination is
            unavailable, are stored as well, so that one of unknown outcome is written again.
        wait: when `add` returns: `"disk"` (default): when the item is stored; `"memory"`: when it
            is accepted, and it is stored soon. `try_add` always returns then. Only with
            `spill="always"`.
        encode: a function from an item to bytes. Default: bytes as they are, other items as JSON.
        decode: a function of the stored value: of the bytes with `encode`, otherwise of the bytes
            or the decoded JSON. Default: that is the item.
        poison: the treatment of items that cannot be delivered, as for a pipe. Default: they are
            *parked*: moved to a separate file in the folder.

    Raises `ConfigError` for a bad argument. Nothing is opened before the batcher, the sink or the
    source is.

    Examples:
        >>> import asyncio, tempfile
        >>> from sluicegate import Batcher
        >>> from sluicegate.flow import Spool
        >>> from sluicegate.sinks import MemorySink
        >>> async def main(folder):
        ...     sink = MemorySink()
        ...     async with Batcher(sink, spool=Spool(folder)) as batcher:
        ...         print(await batcher.deliver({"id": 1}))
        ...     print(sink.items)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     asyncio.run(main(folder))
        Outcome.SPOOLED
        [{'id': 1}]
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        max_bytes: int | str | None = None,
        max_items: int | None = None,
        max_age: float | timedelta | None = None,
        segment_bytes: int | str | None = None,
        sync_delay: float | timedelta = 0.005,
        seal_every: float | timedelta = 1.0,
        durability: Durability = "commit",
        spill: Spill = "always",
        wait: Wait = "disk",
        encode: Callable[[Any], bytes] | None = None,
        decode: Callable[[Any], Any] | None = None,
        poison: Poison | None = None,
    ) -> None:
        if not isinstance(cast("object", path), (str, PathLike)) or not str(path):
            raise checks.bad("path", path, "must be the path of a folder")
        most = _size("max_bytes", max_bytes)
        size = _size("segment_bytes", segment_bytes)
        size = size or max(_LEAST_SEGMENT, int(min(SEGMENT, (most or math.inf) // 8)))
        if most is not None and size * 2 > most:
            rule = f"must be at least two segments ({2 * size} bytes): space is freed by segment"
            raise checks.bad("max_bytes", max_bytes, rule)
        self._sync_delay = checks.seconds(
            "sync_delay", sync_delay, zero=True, usual=checks.LONG_DELAY
        )
        self._spill: Spill = checks.choice("spill", spill, get_args(Spill))
        if checks.choice("wait", wait, get_args(Wait)) == "memory" and spill == "when_full":
            raise checks.bad("wait", wait, 'has no effect with spill="when_full"')
        self._wait: Wait = wait
        rule = "must be a function from an item to bytes"
        encode = checks.optional_function("encode", encode, rule)
        rule = "must be a function of what was stored that returns the item"
        decode = checks.optional_function("decode", decode, rule)
        if poison is not None and not isinstance(cast("object", poison), Poison):
            raise checks.bad("poison", poison, "must be a Poison(...), as for a pipe")
        self._poison = poison
        self._folder = SpoolFolder(
            Settings(
                Path(path),
                max_bytes=most,
                max_items=checks.optional_count("max_items", max_items),
                max_age=checks.optional_seconds("max_age", max_age, usual=math.inf),
                segment_bytes=size,
                seal_every=checks.seconds("seal_every", seal_every, usual=checks.LONG_DELAY),
                is_durable=checks.choice("durability", durability, get_args(Durability))
                == "commit",
                codec=Codec(encode, decode),
            )
        )
        self._front: Front | None = None

    def sink(self) -> SpoolSink:
        """Return the sink that stores items here, for a program that only writes, or that sends
        with its own pipe.
        """
        self._folder.take(writes=True)
        return SpoolSink(self._folder)

    def source(self, *, ends: bool = False) -> SpoolSource:
        """Return the source of the items here, for a pipe or a consumer. With `ends`, it ends when
        everything was delivered; otherwise it waits for more.
        """
        self._folder.take(sends=True)
        return SpoolSource(self._folder, ends=checks.flag("ends", ends))

    @property
    def sender(self) -> Pipe:
        """The pipe that sends the items that a batcher stores here: its `stats()`, `explain()` and
        actions. After the batcher was closed, those of its end. Raises `ClosedError` before it was
        open.
        """
        if self._front is None:
            raise ClosedError(f"{self!r} sends nothing; open its Batcher(sink, spool=...)")
        return self._front.sender.pipe

    def stats(self) -> SpoolStats | None:
        """Return a snapshot, in any thread: while it is closed, that of its end; `None` if it was
        never open. A process that only writes or only sends sees only its own files.
        """
        return self._folder.stats()

    def in_front_of(self, setup: Setup[Any]) -> Setup[Any]:
        """Return the arguments of the batcher that writes here, and `setup` is that of the sender.
        Called by the batcher. Raises `ConfigError`.
        """
        if self._front is not None or self._folder.is_taken:
            raise ConfigError(f"{self!r} has another user; make a separate Spool for each")
        self._front = Front(
            self._folder,
            setup,
            spill=self._spill,
            wait=self._wait,
            sync_delay=self._sync_delay,
            poison=self._poison,
        )
        return self._front.setup

    def __repr__(self) -> str:
        return repr(self._folder)


def spool(path: str | PathLike[str], **options: Any) -> Spool:
    """Make a `Spool`, whose `sink()` and `source()` are the two ends of a spool on disk.

    Takes the arguments of `Spool`. One process may write and another one may send.
    """
    return Spool(path, **options)


def _size(name: str, given: int | str | None) -> int | None:
    """Check a number of bytes, which may have a unit."""
    if not isinstance(given, str):
        return checks.optional_count(name, given, least=_LEAST_SEGMENT)
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]i?B|)\s*", given)
    if found is None:
        raise checks.bad(name, given, 'must be a number of bytes, or text such as "512MiB"')
    return checks.count(name, int(float(found[1]) * _UNITS[found[2]]), least=_LEAST_SEGMENT)
