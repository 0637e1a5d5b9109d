"""Atomic rewriting of a file without some of its lines. Blocks.

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

import os
import pwd
import secrets
from stat import S_IMODE, S_ISLNK, S_ISREG
from typing import TYPE_CHECKING

from ..._core.values.encoding import compressed
from ...letters.store import StoreError
from ..client.repair import is_zstd
from .lines import lines, unfinished

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_BATCH = 500
_MOST_LINKS = 40
_ACCESS_LIST = "system.posix_acl_access"


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


def rewrite(path: Path, stays: Callable[[bytes], bool], *, keep_empty: bool) -> None:
    """Remove the lines for which `stays` is false; delete an empty file, unless `keep_empty`.

    Raises `StoreError` and `OSError`.
    """
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
            end = unfinished(old)
            if not kept and not end and not keep_empty:
                os.unlink(path.name, dir_fd=folder)
                return
            packing = "zstd" if is_zstd(number) else None
            chunks = (
                b"".join(kept[start : start + _BATCH]) for start in range(0, len(kept), _BATCH)
            )
            _replace(
                folder,
                path,
                number,
                b"".join([*(compressed(chunk, packing) for chunk in chunks), end]),
            )
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
