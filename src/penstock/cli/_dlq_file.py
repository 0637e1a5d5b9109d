"""Dead letters in files, as `FileSink` writes them.

1. The files themselves are only read, so a service may go on appending. A look begins with the length that each file has then.
2. What replays say is appended to a file beside them, `<path>.replayed`, which is on the disk before anything is sent.
3. Purging writes each file anew without the letters, on the disk before it takes the old one's name; no sink may have it open.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from penstock._core.clock import LOOP_CLOCK
from penstock._core.errors import ConfigError
from penstock.sinks._file_append import AppendFile, FileSettings, archives
from penstock.sinks._file_repair import is_zstd
from penstock.sinks._http_body import compressed, to_json

from ._dlq_letter import INTERRUPTED, letter_of
from ._dlq_store import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from ._dlq_letter import Letter, Selection
    from ._dlq_store import Ending

_BATCH = 500


class FileStore:
    """A file of dead letters and those that were rotated away from it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes = path.with_name(path.name + ".replayed")
        self._told: dict[str, dict[str, Any]] = {}
        self._journal: AppendFile | None = None
        self.unreadable = 0

    async def __aenter__(self) -> Self:
        if not self._files():
            raise StoreError(f"{self._path}: there is no such file")
        self._read_notes()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._journal is not None:
            self._journal.close()

    async def letters(self, selection: Selection) -> AsyncGenerator[Letter]:
        """As `Store` says."""
        early = {key for key, told in self._told.items() if told["state"] == INTERRUPTED}
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in self._files()]
            lengths = [os.fstat(file.fileno()).st_size for file in files]
            for is_early in (True, False) if early else (False,):
                for letter in self._read(files, lengths):
                    if (letter.key in early) is is_early and selection.has(letter):
                        yield letter

    async def hold(self) -> None:
        """As `Store` says."""
        self._journal = _opened(self._notes)
        self._read_notes()

    async def begin(self, replay: str, keys: Sequence[str]) -> None:
        """As `Store` says."""
        self._note({"replay": replay, "sending": list(keys)})

    async def end(self, replay: str, endings: Sequence[Ending]) -> None:
        """As `Store` says."""
        self._note({"replay": replay, "endings": [ending.as_dict() for ending in endings]})

    async def purge(self, selection: Selection) -> int:
        """As `Store` says."""
        with ExitStack() as stack:
            for path in (self._path, self._notes):
                if path.exists():
                    stack.callback(_opened(path).close)
            gone = {letter.key async for letter in self.letters(selection)}
            if gone:
                for path in self._files():
                    _rewrite(path, gone, keep_empty=path == self._path)
                self._purge_notes(gone)
            return len(gone)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _files(self) -> list[Path]:
        folder = self._path.parent
        if not folder.is_dir():
            return []
        return [*archives(self._path), *([self._path] if self._path.is_file() else [])]

    def _read(self, files: Sequence[BinaryIO], lengths: Sequence[int]) -> Iterator[Letter]:
        self.unreadable = 0
        seen: set[str] = set()
        for line in chain.from_iterable(map(_lines, files, lengths)):
            letter = _letter(line)
            if letter is None:
                self.unreadable += 1
            elif letter.key not in seen:
                seen.add(letter.key)
                told = self._told.get(letter.key)
                yield letter if told is None else letter.after(told)

    # -- notes --------------------------------------------------------------------------------------------------------

    def _read_notes(self) -> None:
        self._told.clear()
        if self._notes.exists():
            with self._notes.open("rb") as file:
                for line in _lines(file, os.fstat(file.fileno()).st_size):
                    self._learn(json.loads(line))

    def _note(self, note: dict[str, Any]) -> None:
        if self._journal is None:
            raise StoreError("the store is not held")
        self._learn(note)
        self._journal.append(to_json(note) + b"\n", LOOP_CLOCK.wall_time())

    def _learn(self, note: dict[str, Any]) -> None:
        on_its_way = {"replay": note["replay"], "state": INTERRUPTED}
        for key in note.get("sending", ()):
            self._told[key] = {**self._told.get(key, {}), **on_its_way}
        for ending in note.get("endings", ()):
            self._told[ending["key"]] = {**self._told.get(ending["key"], {}), **ending}

    def _purge_notes(self, gone: set[str]) -> None:
        left = [{**told, "key": key} for key, told in self._told.items() if key not in gone]
        lines = [to_json({"replay": told.get("replay"), "endings": [told]}) for told in left]
        _replace(self._notes, b"".join(line + b"\n" for line in lines))
        self._read_notes()


def _letter(line: bytes) -> Letter | None:
    try:
        return letter_of(json.loads(line))
    except ValueError:
        return None


def _lines(file: BinaryIO, length: int) -> Iterator[bytes]:
    """The whole lines within a file's first `length` bytes; one that is still being written is left out."""
    file.seek(0)
    part: Any = _Part(file, length)
    if is_zstd(file.fileno()):
        import zstandard  # an optional dependency

        part = zstandard.ZstdDecompressor().stream_reader(part, read_across_frames=True)
        try:
            yield from _whole(part)
        except zstandard.ZstdError as error:
            raise StoreError(f"{file.name} is damaged: {error}") from error
        return
    yield from _whole(part)


def _whole(part: Any) -> Iterator[bytes]:
    return (line for line in io.BufferedReader(part) if line.endswith(b"\n"))


class _Part(io.RawIOBase):
    """The beginning of a file."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)


def _opened(path: Path) -> AppendFile:
    """A file that nobody else writes to until it is closed, its end put right."""
    packed = False
    if path.exists():
        with path.open("rb") as file:
            packed = bool(is_zstd(file.fileno()))
    made = AppendFile(FileSettings(path=path, is_zstd=packed, fsync="always", rotate_bytes=None, rotate_every=None))
    try:
        made.open()
    except (ConfigError, OSError) as error:
        raise StoreError(str(error)) from error
    return made


# -- purging ----------------------------------------------------------------------------------------------------------


def _rewrite(path: Path, gone: set[str], *, keep_empty: bool) -> None:
    with path.open("rb") as file:
        packed = bool(is_zstd(file.fileno()))
        lines = list(_lines(file, os.fstat(file.fileno()).st_size))
    kept = [line for line in lines if (letter := _letter(line)) is None or letter.key not in gone]
    if len(kept) == len(lines):
        return
    if not kept and not keep_empty:
        path.unlink()
        return
    chunks = (b"".join(kept[start : start + _BATCH]) for start in range(0, len(kept), _BATCH))
    _replace(path, b"".join(compressed(chunk, "zstd" if packed else None) for chunk in chunks))


def _replace(path: Path, content: bytes) -> None:
    """Give the file another content, whole or not at all."""
    made = path.with_name(path.name + ".new")
    with made.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        made.chmod(path.stat().st_mode & 0o7777)
    made.replace(path)
