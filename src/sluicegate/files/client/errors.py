"""The classes of file system errors, and the repair for each.

A full disk, a missing permission, a read-only file system and a missing folder refuse every item
until an operator repairs them. A lack of descriptors or memory is temporary.
"""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

from ..._core.classify import classified_by_cause
from ..._core.errors import ErrorClass, RefusedError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_REFUSED = (
    _FULL | _FORBIDDEN | _MISSING | {errno.EROFS, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
_UNAVAILABLE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE})


def classify_file(error: BaseException) -> ErrorClass | None:
    """Classify a file system error; `None` for other errors. Follows `__cause__`. Does not suspend.

    A full disk, a missing permission, a read-only file system and a missing folder are `refused`:
    no item is at fault, and producers wait until an operator has repaired it. A lack of descriptors
    or memory is unavailable. Other errors are transient. Errors of Sluicegate keep their own class.
    """
    return classified_by_cause(error, _class_of)


def _class_of(error: BaseException) -> ErrorClass | None:
    if not isinstance(error, OSError):
        return None
    if error.errno in _REFUSED:
        return ErrorClass.REFUSED
    return ErrorClass.UNAVAILABLE if error.errno in _UNAVAILABLE else ErrorClass.TRANSIENT


def refusal(error: OSError, path: Path) -> RefusedError | None:
    """Return the `RefusedError` for an error that affects every item of `path`, or `None`."""
    if error.errno not in _REFUSED:
        return None
    about = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else path
    return RefusedError(
        f"{path} cannot be written: {error.strerror}", repair=_repair(error.errno or 0, about)
    )


def _repair(number: int, path: Path) -> str:
    if number in _FORBIDDEN:
        what = f"{path}" if os.path.lexists(path) else f"the folder {path.parent}"
        return f"make {what} writable by user {_user()}"
    if number in _MISSING:
        return f"create the folder {path.parent}"
    return {
        errno.ENOSPC: f"free space on the file system of {path}",
        errno.EDQUOT: f"free space, or raise the disk quota of user {_user()}, on the file "
        f"system of {path}",
        errno.EFBIG: "raise the limit on the size of files (ulimit -f), or pass "
        f"rotate_bytes=, since {path} must not grow",
        errno.EROFS: f"mount the file system of {path} for writing",
        errno.EISDIR: f"move the folder {path} away, or pass another path",
        errno.ELOOP: f"put a plain file in place of the symbolic link {path}",
        errno.ENAMETOOLONG: f"pass a shorter path than {path}",
    }[number]


def _user() -> str:
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
