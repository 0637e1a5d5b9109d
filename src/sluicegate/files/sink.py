"""Items appended to a file as lines.

The classes of file system errors, and the repair for each.

A full disk, a missing permission, a read-only file system and a missing folder refuse every item
until an operator repairs them. A lack of descriptors or memory is temporary.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from .._core import checks
from .._core.checks import bad, warn
from .._core.classify import classified_by_cause
from .._core.errors import ClosedError, ConfigError, ErrorClass, RefusedError, UnavailableError
from .._core.keywords import known_arguments
from .._core.opening import Openable
from .._core.public import publish
from .._core.runtime.threads import in_thread
from .._core.sink import WriteResult
from .._core.values.encoding import encoded_items, ndjson
from .append import AppendFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack

    from .._core.batch import Batch


_SYNCS = ("always", "close", "never")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_REFUSED = (
    _FULL | _FORBIDDEN | _MISSING | {errno.EROFS, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
_UNAVAILABLE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE})


@known_arguments()
class FileSink(Openable):
    """Appends each item to a file as a line of JSON. A file belongs to one process at a time.

    Args:
        path: the file; created if missing, in an existing folder. The lock file `path.lock` next to
            it is kept and excludes other processes and other sinks; `path.torn` receives the
            unfinished end that a killed process left.
        encode: a function from an item to its line, as text or bytes without a newline. Default:
            JSON; dates, decimals, UUIDs as text; mappings, dataclasses, pydantic models, attrs
            classes and msgspec structs as objects; named tuples as lists.
        fsync: `"always"` (default): a batch is delivered when it is on the disk. `"close"`: data is
            on the disk when the file is closed; a power failure may lose delivered
            items, the end of this process does not. `"never"`: left to the operating system.
        per_process: one file for each process that opens the sink, such as Spark's workers:
            `events.jsonl` becomes `events-HOST-PID.jsonl`, with the host's name and the process id.
            Default: one file and one process.

    A full disk, a missing permission, a read-only file system and a missing folder raise
    `RefusedError` from opening and from writing; its message names the path and the repair.

    Raises `ConfigError` for a bad argument. Constructing touches no file. Opening does, in a
    thread; it raises `ConfigError` for a file that another process writes to or that is of another
    kind, `RefusedError` for one that cannot be written, and `UnavailableError` for other file
    system errors.

    Examples:
        >>> import asyncio
        >>> from pathlib import Path
        >>> from sluicegate import Batcher
        >>> from sluicegate.files import FileSink
        >>> async def main():
        ...     async with Batcher(FileSink("events.jsonl")) as batcher:
        ...         await batcher.add({"id": 1})
        >>> asyncio.run(main())
        >>> print(Path("events.jsonl").read_text(), end="")
        {"id":1}
    """

    _run_time = ("_file", "_turn")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        encode: Callable[[Any], bytes | str] | None = None,
        fsync: Literal["always", "close", "never"] = "always",
        per_process: bool = False,
    ) -> None:
        rule = "must be a function of an item that returns a line as text or bytes"
        encode = checks.optional_function("encode", encode, rule)
        self._path = _path(path)
        self._fsync = checks.choice("fsync", fsync, _SYNCS)
        _check_suffix(self._path)
        self._encode = encode
        self._per_process = checks.flag("per_process", per_process)
        self._file: AppendFile | None = None
        self._turn: asyncio.Lock | None = None

    @property
    def path(self) -> Path:
        """The current file; with `per_process`, that of this process."""
        path = self._path
        return (
            path.with_stem(f"{path.stem}-{socket.gethostname()}-{os.getpid()}")
            if self._per_process
            else path
        )

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by its errno."""
        return classify_file(error)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Append one line per item, in order, in a thread; concurrent writes take turns. Suspends
        until the thread has ended, without a limit.

        Returns an error for each item that cannot be encoded (`PermanentError`); the others are
        written. Raises `ClosedError` while the sink is not open, `RefusedError` and other
        `OSError`s if no part of the batch was written, and `UnknownOutcomeError` if it may have
        been. Cancellation before its turn writes nothing; later it is raised when the thread has
        ended, and the batch may have been written.
        """
        if self._file is None or self._turn is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        async with self._turn:
            try:
                errors = await in_thread(self._append, self._file, batch)
            except ConfigError as error:
                message = f"{self.path} has been replaced: {error}"
                raise RefusedError(
                    message, repair=f"move {self.path} away, or restore the old file"
                ) from error
            except OSError as error:
                refused = refusal(error, self.path)
                if refused is None:
                    raise
                raise refused from error
        return WriteResult.failed(batch, errors) if errors else None

    def _append(self, file: AppendFile, items: Sequence[Any]) -> dict[int, BaseException]:
        made = encoded_items(self._encode, items, lines=True)
        if made.records:
            file.append(ndjson(made.records))
        return made.errors

    async def _open(self, stack: AsyncExitStack) -> None:
        file = AppendFile(self.path, fsync=self._fsync)
        try:
            await in_thread(file.open)
        except asyncio.CancelledError:
            file.close()
            raise
        except OSError as error:
            raise refusal(error, self.path) or UnavailableError(
                f"{self.path} cannot be opened: {error}"
            ) from error
        self._file, self._turn = file, asyncio.Lock()
        stack.push_async_callback(in_thread, file.close)

    def __repr__(self) -> str:
        return f"FileSink({str(self._path)!r})"


def _check_suffix(path: Path) -> None:
    """Warn if the file's name has a compression suffix, since its lines are not compressed."""
    if path.suffix.lower() in {".gz", ".bz2", ".xz", ".zst"}:
        warn(
            f"the name {path.name!r} has the suffix of a compressed file, but the lines are not "
            "compressed; let logrotate compress complete files"
        )


def _path(path: object) -> Path:
    rule = "must be the path of a file"
    if not isinstance(path, (str, os.PathLike)):
        raise bad("path", path, rule)
    made = os.fspath(cast("str | os.PathLike[str]", path))
    if not made or "\0" in made or made.endswith(os.sep):
        raise bad("path", made, rule)
    return Path(made)


# -- errors ----------------------------------------------------------------------------------------


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
        errno.EFBIG: f"raise the limit on the size of files (ulimit -f), or rename {path}",
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


publish("sluicegate.files", FileSink)
