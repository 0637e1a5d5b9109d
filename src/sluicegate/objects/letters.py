"""Dead letters in objects written by `ObjectSink`.

1. Replays only read the objects, so services may keep writing. Each pass reads the objects that
   exist at its start, in the order of their first letters. This keeps the order per key: letters of
   a key are in objects of one batcher, which begins each object after the previous one was written.
2. The notes of replays are objects below `_replays/`, one per note. The store has confirmed a note
   before a letter is sent.
3. Purging rewrites an object without the letters, or removes it. An object that is removed
   meanwhile, by a rule of the bucket or by hand, has no letters.
4. A line that is not a letter is reported by its number, and stays unchanged.
5. One replay or purge runs at a time: see `ReplayTurn`. A frozen process may be mistaken for an
   ended one. So each note has the next number, and is stored only if no note has that number or a
   higher one: of two concurrent replays, one fails before it sends a letter. (A purge replaces all
   notes by one with the next number.)
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import logging
import os
import re
import socket
import zlib
from datetime import UTC
from typing import TYPE_CHECKING

from .._core.errors import SinkError
from .._core.logs import for_log
from .._core.values.encoding import compressed, to_json
from ..letters.letter import NoLetterError, key_in, letter_in
from ..letters.store import NotedStore, StoreError
from .store import ObjectFolder, StoreGiven

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from types import TracebackType
    from typing import Any, Self

    from ..letters.letter import Letter, Selection
    from .store import Listed


_log = logging.getLogger("sluicegate.dlq")

ENDS = {".ndjson": None, ".ndjson.gz": "gzip", ".ndjson.zst": "zstd"}
NOTES = "_replays/"
_NOTE = re.compile(rf"{NOTES}\d{{12}}\.json")
_HIDDEN = re.compile(r"_[^/=]*/")
"""A folder such as `_manifests/`, unlike the one of a partition, such as `_day=2026-01-31/`."""
LEASE = 15.0
"""Seconds after which an unchanged lease is taken over."""
RENEWED = 3.0
"""Seconds between two renewals of a lease."""
ANSWER_WITHIN = 5.0
"""Timeout in seconds of a request about the lease."""
HEAD_BYTES = 64 << 10
READS_AT_ONCE = 16
TIMEOUT = 30.0
_KEPT = "%s: the lease of this replay could not be removed (%s); it ends by itself in %g s"


class ObjectStore(NotedStore):
    """Dead letters below a URL, with credentials from the environment."""

    _unit = "object"

    def __init__(self, url: str, *, lease: float = LEASE) -> None:
        super().__init__()
        self._url = url
        self._given = StoreGiven.of(url, config=None, client_options=None, timeout=TIMEOUT)
        self._lease = lease
        self._folder: ObjectFolder | None = None
        self._turn: ReplayTurn | None = None
        self._next_note = 0

    async def __aenter__(self) -> Self:
        self._folder = ObjectFolder(self._given)
        if not await self._list():
            raise StoreError(
                f"{self._given.place}: there are no objects of dead letters (*.ndjson) below it"
            )
        await self._read_notes()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._turn is not None:
            await self._turn.end()

    async def letters(self, selection: Selection) -> AsyncGenerator[Letter]:
        """See `Store`."""
        early = self._notes.interrupted
        paths = await self._in_order()
        for is_early in (True, False) if early else (False,):
            self.unreadable.clear()
            self.unreadable.include(self._bad_notes)
            seen: set[str] = set()
            for path in paths:
                if (content := await self._open.read(path)) is None:
                    continue
                for letter in self._letters_of(path, content):
                    if letter.key in seen:
                        continue
                    seen.add(letter.key)
                    if (letter.key in early) is is_early and selection.has(letter):
                        yield letter

    async def hold(self) -> None:
        """See `Store`."""
        given = StoreGiven.of(self._url, config=None, client_options=None, timeout=ANSWER_WITHIN)
        self._turn = ReplayTurn(ObjectFolder(given), f"{NOTES}turn", lease=self._lease)
        await self._turn.take()
        await self._read_notes()
        self._need_notes()

    async def purge(self, selection: Selection) -> int:
        """See `Store`."""
        await self.hold()
        gone = {letter.key async for letter in self.letters(selection)}
        if gone:
            for each in await self._list():
                await self._purge(each.path, gone)
            await self._purge_notes(gone)
        return len(gone)

    # -- reading -----------------------------------------------------------------------------------

    @property
    def _open(self) -> ObjectFolder:
        if self._folder is None:
            raise StoreError("the store is not open")
        return self._folder

    async def _list(self) -> list[Listed]:
        return [
            each
            for each in await self._open.list_objects()
            if each.path.endswith((*ENDS,)) and not _HIDDEN.match(each.path) and each.size
        ]

    async def _in_order(self) -> list[str]:
        """Return the objects in the order of their first letters."""
        free = asyncio.Semaphore(READS_AT_ONCE)

        async def begun(each: Listed) -> tuple[str, str]:
            async with free:
                head = await self._open.read(each.path, min(each.size, HEAD_BYTES)) or b""
                first = _first_line(each.path, head)
                if first is None:
                    content = await self._open.read(each.path) or b""
                    first = next(_lines(each.path, content), b"")
            try:
                return letter_in(first).last_at.astimezone(UTC).isoformat(), each.path
            except NoLetterError:
                return "", each.path

        times = await asyncio.gather(*map(begun, await self._list()))
        return [path for _, path in sorted(times)]

    def _letters_of(self, path: str, content: bytes) -> Iterator[Letter]:
        for number, line in enumerate(_lines(path, content), 1):
            try:
                letter = letter_in(line)
            except NoLetterError as error:
                self.unreadable.add(f"{self._given.place}/{path}:{number}", str(error))
                continue
            told = self._notes.told.get(letter.key)
            yield letter if told is None else letter.after(told)

    # -- notes -------------------------------------------------------------------------------------

    async def _read_notes(self) -> None:
        self._forget_notes()
        self._next_note = 0
        for path in await self._note_paths():
            self._next_note = _number(path) + 1
            if (content := await self._open.read(path)) is None:
                raise self._another()
            for line in content.splitlines():
                self._learn(line, f"{self._given.place}/{path}")

    async def _note_paths(self) -> list[str]:
        listed = await self._open.list_objects(NOTES)
        return [each.path for each in listed if _NOTE.fullmatch(each.path)]

    async def _store_note(self, content: bytes) -> None:
        if self._turn is None:
            raise StoreError("the store is not held")
        path = _note_path(self._next_note)
        if not await self._open.create(path, content):
            raise self._another()
        if (await self._note_paths())[-1:] != [path]:  # a purge has put one later note for all
            await self._open.remove(path)
            raise self._another()
        self._next_note += 1

    def _another(self) -> StoreError:
        return StoreError(
            f"{self._given.place}: another replay or purge has begun meanwhile; run the command "
            "again when it has ended"
        )

    async def _purge_notes(self, gone: set[str]) -> None:
        """Replace all notes by one with the same meaning for the remaining letters."""
        earlier = await self._note_paths()
        await self._store_note(self._notes.lines_without(gone))
        await self._open.remove(*earlier)
        await self._read_notes()

    async def _purge(self, path: str, gone: set[str]) -> None:
        if (content := await self._open.read(path)) is None:
            return
        lines = list(_lines(path, content))
        left = [line for line in lines if key_in(line) not in gone]
        if len(left) == len(lines):
            return
        if not left:
            await self._open.remove(path)
            return
        kept = b"".join(line + b"\n" for line in left)
        await self._open.replace(path, compressed(kept, _compression(path)))


def _compression(path: str) -> str | None:
    return next(ENDS[end] for end in reversed(ENDS) if path.endswith(end))


def _lines(path: str, content: bytes) -> Iterator[bytes]:
    """Yield the lines of an object. Raises `StoreError` if it is damaged."""
    try:
        return (line.rstrip(b"\n") for line in io.BytesIO(_plain(path, content)))
    except Exception as error:
        raise StoreError(f"{path} is damaged: {error}") from error


def _plain(path: str, content: bytes, *, is_part: bool = False) -> bytes:
    match _compression(path):
        case "gzip":
            return _unpack(content, lambda: zlib.decompressobj(wbits=31), is_part=is_part)
        case "zstd":
            import zstandard  # an optional dependency

            start = zstandard.ZstdDecompressor().decompressobj
            return _unpack(content, start, is_part=is_part)
        case _:
            return content


def _unpack(content: bytes, start: Callable[[], Any], *, is_part: bool) -> bytes:
    """Decompress all members of a content: an object may have been joined from several."""
    made: list[bytes] = []
    while content:
        unpacking = start()
        made.append(unpacking.decompress(content))
        if not unpacking.eof:
            if not is_part:
                raise ValueError("its end is missing")
            break
        content = unpacking.unused_data
    return b"".join(made)


def _first_line(path: str, head: bytes) -> bytes | None:
    """Return the first line of an object, if the beginning of its content contains all of it."""
    try:
        line, found, _ = _plain(path, head, is_part=True).partition(b"\n")
    except Exception:  # damaged; reading the whole object reports it
        return None
    return line if found else None


def _note_path(number: int) -> str:
    return f"{NOTES}{number:012}.json"


def _number(path: str) -> int:
    return int(path.removeprefix(NOTES).removesuffix(".json"))


# -- the turn of a replay --------------------------------------------------------------------------


class ReplayTurn:
    """The turn of this process, from `take` to `end`; it excludes other replays of the same letters.

    1. A replay holds a lease: an object that it rewrites every few seconds. A lease that does not
       change for `LEASE` seconds is assumed to belong to a process that has ended, and is taken over.
    2. This needs a store that refuses to create an existing object. Some servers ignore that
       condition (`If-None-Match`) and replace the object, so a turn begins with a second attempt to
       create its own lease.
    """

    def __init__(self, folder: ObjectFolder, path: str, *, lease: float = LEASE) -> None:
        self._folder = folder
        self._path = path
        self._lease = lease
        self._renewing: asyncio.Task[None] | None = None
        self._numbers = itertools.count()

    async def take(self) -> None:
        """Take the turn. Suspends for `LEASE` seconds if an earlier replay has not ended its turn.

        Raises `StoreError` if that replay is still running, or if the store cannot exclude replays.
        """
        if not await self._folder.create(self._path, self._content()):
            _log.warning(
                "%s: a replay has not ended its turn; waiting %g s to check whether it is still running",
                self._folder.place,
                self._lease,
            )
            before = await self._folder.tag(self._path)
            await asyncio.sleep(self._lease)
            if before != await self._folder.tag(self._path):
                raise StoreError(
                    f"{self._folder.place}: another replay or purge is running; wait until it ends"
                )
            await self._folder.replace(self._path, self._content())
        elif await self._folder.create(self._path, self._content()):
            await self._folder.remove(self._path)
            raise StoreError(
                f"{self._folder.place}: the server replaces an object that it was asked to create only "
                "if missing (If-None-Match), so concurrent replays cannot be excluded; copy the "
                "objects to a folder, and replay from there"
            )
        self._renewing = asyncio.ensure_future(self._renew())

    async def end(self) -> None:
        """Release the turn. Idempotent."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewing
            try:
                await self._folder.remove(self._path)
            except SinkError as error:
                _log.warning(_KEPT, self._folder.place, for_log(error), self._lease)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease * RENEWED / LEASE)
            # the next note, which the store then refuses too, reports a failure
            with contextlib.suppress(Exception):
                await self._folder.replace(self._path, self._content())

    def _content(self) -> bytes:
        """Return content that differs each time, so that the object's tag differs too."""
        return to_json(
            {"host": socket.gethostname(), "process": os.getpid(), "count": next(self._numbers)}
        )
