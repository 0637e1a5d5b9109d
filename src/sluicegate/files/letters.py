"""Dead letters in files written by `FileSink`.

1. Replays only read the files, so a service may keep appending. Each pass reads the files up to
   their lengths at its start.
2. Replays append their notes to a second file, `<path>.replayed`, and flush it to disk before a
   letter is sent. It is never opened through a symbolic link, and is created with the mode of the
   dead letters.
3. Purging rewrites the file without the letters (`rewrite`); no sink may have it open.
4. A line that is not a letter is reported by its number, and stays unchanged.

Atomic rewriting of a file without some of its lines. Blocks.

1. Every step works within the folder opened at the start, so replacing the folder meanwhile has no
   effect.
2. The new file has a random name, and is created exclusively and only for this user. It gets the
   old file's owner, mode and access list and is flushed to disk before it is renamed to the old
   file's name. So users who could not read the old file can never read the new one, and a planted
   link has no effect.
3. If a symbolic link names the file, its target is rewritten and the link stays. The link must
   belong to this user or to root.
4. Kept lines are copied byte by byte, even if they are unreadable. So is an unfinished end.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
from contextlib import ExitStack
from stat import S_IMODE, S_ISLNK, S_ISREG
from typing import TYPE_CHECKING, BinaryIO

from .._core.errors import SluicegateError
from ..letters.letter import NoLetterError, key_in, letter_in
from ..letters.store import NotedStore, StoreError
from ..letters.text import without_secrets
from .append import AppendFile
from .repair import whole_lines
from .sink import refusal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from ..letters.letter import Letter, Selection

_MOST_LINKS = 40
"""Symbolic links to follow, as many as Linux does."""
_ACCESS_LIST = "system.posix_acl_access"


class FileStore(NotedStore):
    """A file of dead letters."""

    _unit = "line"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._beside = path.with_name(path.name + ".replayed")
        self._journal: AppendFile | None = None

    async def __aenter__(self) -> Self:
        if not self._path.is_file():
            raise StoreError(without_secrets(f"{self._path}: {_why_missing(self._path)}"))
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
        with self._path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            for is_early in (True, False) if early else (False,):
                for letter in self._read(file, length):
                    if (letter.key in early) is is_early and selection.has(letter):
                        yield letter

    async def hold(self) -> None:
        """See `Store`."""
        self._journal = _open_append(self._beside, follows=False, mode=self._mode)
        self._read_notes()
        self._need_notes()

    async def purge(self, selection: Selection) -> int:
        """See `Store`."""
        with ExitStack() as stack:
            for path in dict.fromkeys((self._path, real(self._path))):
                if path.exists():
                    stack.callback(_open_append(path).close)
            if self._beside.is_symlink() or self._beside.exists():
                stack.callback(_open_append(self._beside, follows=False, mode=self._mode).close)
            self._read_notes()
            self._need_notes()
            gone = {letter.key async for letter in self.letters(selection)}
            if gone:
                rewrite(real(self._path), lambda line: key_in(line) not in gone)
                self._purge_notes(gone)
            return len(gone)

    # -- reading -----------------------------------------------------------------------------------

    @property
    def _mode(self) -> int:
        """The mode of the file of notes: notes on letters are as confidential as the letters."""
        return self._path.stat().st_mode & 0o666

    def _read(self, file: BinaryIO, length: int) -> Iterator[Letter]:
        self.unreadable.clear()
        self.unreadable.include(self._bad_notes)
        seen: set[str] = set()
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
        self._journal.append(content)

    def _purge_notes(self, gone: set[str]) -> None:
        if self._beside.exists():
            replace(self._beside, self._notes.lines_without(gone))
            self._read_notes()


def _open_append(path: Path, *, follows: bool = True, mode: int = 0o666) -> AppendFile:
    """Open a file exclusively, and repair its end."""
    made = AppendFile(path, fsync="always", follows=follows, mode=mode)
    try:
        made.open()
    except OSError as error:
        raise StoreError(str(refusal(error, path) or error)) from error
    except SluicegateError as error:
        raise StoreError(str(error)) from error
    return made


# -- rewriting -------------------------------------------------------------------------------------


def real(path: Path) -> Path:
    """Follow links of this user and of root. Raises `StoreError` for any other link."""
    for _ in range(_MOST_LINKS):
        try:
            found = path.lstat()
        except FileNotFoundError:
            return path
        if not S_ISLNK(found.st_mode):
            return path
        if found.st_uid not in {0, os.geteuid()}:
            raise StoreError(
                f"{path} is a symbolic link of user {_name(found.st_uid)}, and is not "
                "followed; name the file itself"
            )
        path = path.parent / path.readlink()
    raise StoreError(f"{path} is a loop of symbolic links")


def rewrite(path: Path, stays: Callable[[bytes], bool]) -> None:
    """Remove the lines for which `stays` is false. Raises `StoreError` and `OSError`."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        number = os.open(
            path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
        with os.fdopen(number, "rb") as old:
            found = os.fstat(number)
            if not S_ISREG(found.st_mode):
                raise StoreError(f"{path} is not a plain file")
            before = list(lines(old, found.st_size))
            kept = [line for line in before if stays(line)]
            if len(kept) == len(before):
                return
            whole = whole_lines(number)
            end = os.pread(number, os.fstat(number).st_size - whole, whole)
            _replace(folder, path, number, b"".join([*kept, end]))
    finally:
        os.close(folder)


def replace(path: Path, content: bytes) -> None:
    """Replace a plain file's content atomically. Raises `StoreError` and `OSError`."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        old = os.open(
            path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
        try:
            _replace(folder, path, old, content)
        finally:
            os.close(old)
    finally:
        os.close(folder)


def _replace(folder: int, path: Path, old: int, content: bytes) -> None:
    name = f".sluicegate-{secrets.token_hex(8)}.new"
    file = os.open(
        name,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=folder,
    )
    try:
        with os.fdopen(file, "wb") as new:
            new.write(content)
            new.flush()
            _copy_metadata(file, old, path)
            os.fsync(file)
        os.rename(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
    os.fsync(folder)


def _copy_metadata(file: int, old: int, path: Path) -> None:
    """Copy the old file's owner, mode and access list to the new file."""
    found, made = os.fstat(old), os.fstat(file)
    if (found.st_uid, found.st_gid) != (made.st_uid, made.st_gid):
        try:
            os.fchown(file, found.st_uid, found.st_gid)
        except PermissionError as error:
            message = (
                f"{path} belongs to user {_name(found.st_uid)}, group {found.st_gid}; "
                "purge it as that user, or as root"
            )
            raise StoreError(message) from error
    os.fchmod(file, S_IMODE(found.st_mode))
    if _ACCESS_LIST in _attributes(old):
        os.setxattr(file, _ACCESS_LIST, os.getxattr(old, _ACCESS_LIST))


def _attributes(file: int) -> list[str]:
    try:
        return os.listxattr(file)
    except OSError:  # a file system without attributes
        return []


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


# -- lines -----------------------------------------------------------------------------------------


def lines(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Yield the complete lines within a file's first `length` bytes."""
    file.seek(0)
    while (line := file.readline(length)).endswith(b"\n"):
        length -= len(line)
        yield line


def _why_missing(path: Path) -> str:
    if path.is_dir():
        return "a folder, not a file"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    return "there is no such file"
