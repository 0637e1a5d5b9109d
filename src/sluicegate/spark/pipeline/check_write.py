"""Checks of the `[write]` table of a pipeline, without Spark."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.errors import ConfigError
from .declaration import names
from .mistakes import meant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .declaration import Declared


def whole(version: int | str) -> int | None:
    """Return the version as a number; `None` if it is not a whole number of at least 0."""
    number = (
        int(version)
        if isinstance(version, int) or (version.isascii() and version.isdecimal())
        else -1
    )
    return number if number >= 0 else None


class WriteCheck:
    """Checks of the write; `columns` are the written columns, if the SQL names them."""

    def __init__(
        self,
        pipeline: Declared,
        columns: tuple[str, ...] | None,
        say: Callable[[tuple[str, ...], str], None],
    ) -> None:
        self._pipeline = pipeline
        self._write = pipeline.write
        self._columns = columns
        self._say_at = say

    def run(self) -> None:
        """Report all mistakes."""
        self._check_ends()
        if not names(self._write.key):
            self._check_without_key()
        elif self._write.latest_only and not names(self._write.order_by):
            self._say("latest_only", "needs order_by, which defines the last row of a key")
        self._check_level()
        self._check_version()
        self._check_columns()
        self._check_numbers()

    def _say(self, name: str, text: str) -> None:
        self._say_at(("write", name), text)

    def _check_ends(self) -> None:
        pipeline, write = self._pipeline, self._write
        views = [*pipeline.sources, *pipeline.steps]
        if write.view.lower() not in {view.lower() for view in views}:
            self._say("view", f"there is no view {write.view!r}; {meant(write.view, views)}")
        if write.sink not in pipeline.sinks:
            text = f"there is no sink {write.sink!r}; {meant(write.sink, pipeline.sinks)}"
            self._say("sink", text)

    def _check_without_key(self) -> None:
        write = self._write
        for name in ("order_by", "buckets"):
            if getattr(write, name):
                self._say(name, "has no meaning without key")
        if write.latest_only:
            self._say("latest_only", "has no meaning without key and order_by")
        if write.on_key_failure != "skip":
            self._say("on_key_failure", "has no meaning without key")
        for name in ("app_id", "version") if write.delivery != "atomic" else ():
            if getattr(write, name) is not None:
                self._say(name, "has no meaning without key: only buckets of keys have names")
        if write.delivery == "bucket":
            self._say("delivery", "'bucket' needs key: its ledger counts buckets of keys")

    def _check_level(self) -> None:
        write = self._write
        if write.mode == "overwrite" and write.delivery != "atomic":
            self._say(
                "mode",
                "'overwrite' needs delivery = 'atomic': readers would see a partly filled table",
            )
        is_plain = write.delivery == "at_least_once"
        if write.content is not None and is_plain and not self._has_names():
            self._say(
                "content",
                "has no meaning here: repeated rows are recognized only with a key, and a version or "
                "a stream",
            )

    def _has_names(self) -> bool:
        """Whether repeated batches have the same names."""
        return bool(names(self._write.key or ())) and (
            self._pipeline.stream is not None or self._write.version is not None
        )

    def _check_version(self) -> None:
        write, is_stream = self._write, self._pipeline.stream is not None
        is_plain = write.delivery == "at_least_once"
        if is_stream and write.version is not None:
            self._say("version", "cannot be set in a stream: it is the number of the micro-batch")
        elif write.version is None and not is_stream and (not is_plain or write.app_id is not None):
            needs = "app_id" if is_plain else f"delivery = {write.delivery!r}"
            self._say(
                "version",
                f"is missing, and {needs} needs it: it distinguishes a repeated write from the next",
            )
        elif write.version is not None and whole(write.version) is None:
            self._say("version", f"{write.version!r} is not a whole number of at least 0")

    def _check_columns(self) -> None:
        if self._columns is None:
            return
        known = {column.lower() for column in self._columns}
        for name in ("key", "order_by", "content"):
            for column in names(getattr(self._write, name) or ()):
                if column.lower() not in known:
                    text = f"{self._write.view} has no column {column!r}; "
                    self._say(name, text + meant(column, self._columns))

    def _check_numbers(self) -> None:
        counted: Iterable[tuple[str, Callable[[str, object], object]]] = [
            *(
                (name, checks.optional_count)
                for name in ("buckets", "chunk_rows", "chunk_bytes", "max_in_flight", "max_tasks")
            ),
            *(
                (name, lambda name, value: checks.optional_count(name, value, least=0))
                for name in ("max_dead_letters", "unit_buffer_bytes")
            ),
            ("patience", partial(checks.optional_seconds, usual=checks.LONG_PERIOD)),
        ]
        for name, rule in counted:
            try:
                rule(name, getattr(self._write, name))
            except ConfigError as error:
                self._say(name, str(error))
