"""A source over files in NDJSON, CSV and Parquet, optionally compressed."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import ClosedError
from ..._core.keywords import known_arguments
from ..._core.opening import only_user
from ..._core.runtime.threads import in_thread
from ..._core.source import SourceCapabilities
from .finding import FileSet, need_pyarrow
from .options import FileOptions
from .reading import OpenFiles
from .state import FileState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
    from typing import Literal

    from ..._core.source import ClaimHost, Fetched, Position, SourceClaim

STATE = ".sluicegate.sqlite"
"""Name of the file with the positions, in the directory of the files."""
_FORMATS = ("auto", "ndjson", "csv", "parquet")


@known_arguments()
class FileSource:
    """The rows of files as records, for backfills and tests.

    Each file is a partition, and the offset of a record is the number of its row, starting at 0.
    The topic is the subscription; the header `file` is the path relative to the directory. The
    timestamp is the modification time of the file. The value is a line of NDJSON in bytes,
    unchanged, or a row of CSV (in UTF-8) or Parquet as a `dict`.

    The files that exist when the source is opened are read, and the source ends. A file is recorded
    when it is found. If its content changes later, if it vanishes before it is finished, or if it
    is truncated or damaged, it is reported by name: the source raises `UnreadFiles` at its end,
    after all deliveries. The rows before the damage and all other files are delivered. Finished
    files may be removed. Compressed data has its checksum at its end, so damage may be detected
    after damaged rows were delivered.

    Files and directories whose names begin with `.` or `_`, or end in `.tmp`, `.temp`, `.part` or
    `.partial`, are skipped. Write a file under such a name and rename it when it is complete.

    Args:
        path: a directory, read at any depth; a pattern such as `"events/**/*.csv.gz"`; or one file.
        format: `"ndjson"`, `"csv"` or `"parquet"` for all files; default: `"auto"`, by the suffix
            `.ndjson`, `.jsonl`, `.csv` or `.parquet`. NDJSON and CSV may be compressed, with the
            further suffix `.gz`, `.zst` or `.zstd`.
        key: the column with the key, or a function from the value of a record to its key; default:
            no keys. A column of NDJSON is a field of the object; a line without it has no key.
        subscription: the name under which the positions are stored; default `"backfill"`. A new
            name reads all files again.
        state: the path of the SQLite file with the positions; default: `.sluicegate.sqlite` in the
            directory. It is locked while the source is open: one process reads the files.
        files_at_once: the most files to read at a time, in the order of their paths. The next file
            begins when all rows of one are settled and its position is committed. With 1 (default)
            records with equal keys are in order across all files; otherwise within each file.
        csv_options: any options of `csv.DictReader`, such as `{"delimiter": ";"}`, or `fieldnames`
            for files without a header. Quoting is strict by default. A field is limited by
            `csv.field_size_limit()`, which is 131,072 characters unless the application sets it.
        max_row_bytes: the most bytes in a line of NDJSON or a row of CSV; default 16 MiB. A longer
            row is damage.

    Raises `ConfigError` for a bad argument and `MissingExtra` for `format="parquet"` without
    pyarrow. Used by one consumer at a time, on one loop. The constructor accesses no file. Opening
    does so in a thread. It raises `ConfigError` if there is no file to read, if the format of a file
    is unknown, or if another process has locked the state, and `MissingExtra` if the package for a
    file is missing.
    """

    capabilities = SourceCapabilities(batches=True, metadata=True)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: Literal["auto", "ndjson", "csv", "parquet"] = "auto",  # noqa: A002  # the natural name
        key: str | Callable[[Any], object] | None = None,
        subscription: str = "backfill",
        state: str | os.PathLike[str] | None = None,
        files_at_once: int = 1,
        csv_options: Mapping[str, Any] | None = None,
        max_row_bytes: int = 16 << 20,
    ) -> None:
        chosen = checks.choice("format", format, _FORMATS)
        if chosen == "parquet":
            need_pyarrow()
        if key is not None and not isinstance(key, str):
            rule = "must be the name of a column, or a function of a row's value"
            key = checks.function("key", key, rule)
        self._options = FileOptions(
            files=FileSet(checks.text("path", str(path) if isinstance(path, Path) else path)),
            subscription=checks.text("subscription", subscription),
            format=None if chosen == "auto" else cast("Any", chosen),
            key=key,
            csv_options=dict(csv_options or {}),
            files_at_once=checks.count("files_at_once", files_at_once),
            max_row_bytes=checks.count("max_row_bytes", max_row_bytes),
        )
        self._state = None if state is None else Path(checks.text("state", os.fspath(state)))
        self._files: OpenFiles | None = None

    @property
    def group(self) -> str:
        """The subscription's name, as the group of the positions."""
        return self._options.subscription

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Read in the background; at exit, end the claims and unlock the state.

        Raises `ConfigError` if it is already open, and it and `MissingExtra` as described for the
        class.
        """
        options = self._options
        async with AsyncExitStack() as stack:
            stack.enter_context(only_user(self))
            root = options.files.root
            if self._state is None and not root.is_dir():
                raise bad("path", str(options.files), f"there is no directory {root}")
            state = FileState(self._state or root / STATE, options.subscription)
            # before it is opened: a cancelled opening leaves it open
            stack.push_async_callback(in_thread, state.close)
            await in_thread(state.open)
            files = self._files = OpenFiles(options, root, state, host)
            stack.callback(self._forget)
            await stack.enter_async_context(files.running())
            yield

    def _forget(self) -> None:
        self._files = None

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Deliver rows of these files.

        Raises `UnreadFiles` at the end if some files could not be read, and `sqlite3.Error`.
        """
        return await self._open().fetch(claims, most)

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store positions and maps. Raises `sqlite3.Error`."""
        return await self._open().commit(positions)

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """Return the numbers of rows: for Parquet at once, for others once the end was read."""
        return self._open().ends(claims)

    def _open(self) -> OpenFiles:
        if self._files is None:
            raise ClosedError(f"{self!r} is not open")
        return self._files

    def __repr__(self) -> str:
        options = self._options
        return f"FileSource({str(options.files)!r}, subscription={options.subscription!r})"
