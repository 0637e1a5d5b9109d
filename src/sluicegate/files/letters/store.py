"""Dead letters in files written by `FileSink`.

1. Replays only read the files, so a service may keep appending. Each pass reads the files up to
   their lengths at its start.
2. Replays append their notes to a second file, `<path>.replayed`, and flush it to disk before a
   letter is sent. It is never opened through a symbolic link, and is created with the mode of the
   dead letters.
3. Purging rewrites each file without the letters (`rewrite.py`); no sink may have it open.
4. A line that is not a letter is reported by its number, and stays unchanged.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO

from ..._core.clock import LOOP_CLOCK
from ..._core.errors import SluicegateError
from ...letters.letter import NoLetterError, key_in, letter_in
from ...letters.store import NotedStore, StoreError
from ...letters.text import without_secrets
from ..client.append import AppendFile, FileSettings, archives
from ..client.errors import refusal
from ..client.repair import is_zstd
from .lines import lines
from .nearby import why_missing
from .rewrite import real, replace, rewrite

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from ...letters.letter import Letter, Selection


class FileStore(NotedStore):
    """A file of dead letters and its rotated predecessors."""

    _unit = "line"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._beside = path.with_name(path.name + ".replayed")
        self._journal: AppendFile | None = None

    async def __aenter__(self) -> Self:
        if not self._files():
            raise StoreError(without_secrets(f"{self._path}: {why_missing(self._path)}"))
        self._read_notes()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._journal is not None:
            self._journal.close()

    async def letters(self, selection: Selection) -> AsyncGenerator[Letter]:
        """See `Store`."""
        early = self._notes.interrupted
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in self._files()]
            lengths = [os.fstat(file.fileno()).st_size for file in files]
            for is_early in (True, False) if early else (False,):
                for letter in self._read(files, lengths):
                    if (letter.key in early) is is_early and selection.has(letter):
                        yield letter

    async def hold(self) -> None:
        """See `Store`."""
        self._journal = _opened(self._beside, follows=False, mode=self._mode)
        self._read_notes()
        self._need_notes()

    async def purge(self, selection: Selection) -> int:
        """See `Store`."""
        with ExitStack() as stack:
            for path in dict.fromkeys((self._path, real(self._path))):
                if path.exists():
                    stack.callback(_opened(path).close)
            if self._beside.is_symlink() or self._beside.exists():
                stack.callback(_opened(self._beside, follows=False, mode=self._mode).close)
            self._read_notes()
            self._need_notes()
            gone = {letter.key async for letter in self.letters(selection)}
            if gone:
                for path in self._files():
                    rewrite(
                        real(path),
                        lambda line: key_in(line) not in gone,
                        keep_empty=path == self._path,
                    )
                self._purge_notes(gone)
            return len(gone)

    # -- reading -----------------------------------------------------------------------------------

    def _files(self) -> list[Path]:
        folder = self._path.parent
        if not folder.is_dir():
            return []
        return [path for path in (*archives(self._path), self._path) if path.is_file()]

    @property
    def _mode(self) -> int:
        """The mode of the file of notes: notes on letters are as confidential as the letters."""
        return self._files()[-1].stat().st_mode & 0o666

    def _read(self, files: Sequence[BinaryIO], lengths: Sequence[int]) -> Iterator[Letter]:
        self.unreadable.clear()
        self.unreadable.include(self._bad_notes)
        seen: set[str] = set()
        for file, length in zip(files, lengths, strict=True):
            for number, line in enumerate(lines(file, length), 1):
                try:
                    letter = letter_in(line)
                except NoLetterError as error:
                    self.unreadable.add(f"{file.name}:{number}", str(error))
                    continue
                if letter.key not in seen:
                    seen.add(letter.key)
                    told = self._notes.told.get(letter.key)
                    yield letter if told is None else letter.after(told)

    # -- notes -------------------------------------------------------------------------------------

    def _read_notes(self) -> None:
        self._forget_notes()
        for number, line in enumerate(self._lines_of_notes(), 1):
            self._learn(line, f"{self._beside}:{number}")

    def _lines_of_notes(self) -> list[bytes]:
        try:
            number = os.open(
                self._beside, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StoreError(
                    f"{self._beside} is a symbolic link, and is not followed; replace it by a "
                    "plain file, or remove it"
                ) from error
            raise
        with os.fdopen(number, "rb") as file:
            return list(lines(file, os.fstat(number).st_size))

    async def _store_note(self, content: bytes) -> None:
        if self._journal is None:
            raise StoreError("the store is not held")
        self._journal.append(content, LOOP_CLOCK.wall_time())

    def _purge_notes(self, gone: set[str]) -> None:
        if self._beside.exists():
            replace(self._beside, self._notes.lines_without(gone))
            self._read_notes()


def _opened(path: Path, *, follows: bool = True, mode: int = 0o666) -> AppendFile:
    """Open a file exclusively, and repair its end."""
    packed = False
    if follows and path.exists():
        with path.open("rb") as file:
            packed = bool(is_zstd(file.fileno()))
    settings = FileSettings(
        path=path,
        is_zstd=packed,
        fsync="always",
        rotate_bytes=None,
        rotate_every=None,
        follows=follows,
        mode=mode,
    )
    made = AppendFile(settings)
    try:
        made.open()
    except OSError as error:
        raise StoreError(str(refusal(error, path) or error)) from error
    except SluicegateError as error:
        raise StoreError(str(error)) from error
    return made
