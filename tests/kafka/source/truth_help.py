"""The actual work of the handlers of several members, compared with their commits.

White box: the map beside a committed position is decoded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tests.kafka.source.proxy_help import commit_of, is_commit
from tests.kafka.source.storm_help import News

from sluicegate.consumer.progress.offset_map import decode

if TYPE_CHECKING:
    from tests.kafka.source.proxy_help import Frame

    from sluicegate import Message


class Truth:
    """Starts and ends of handlers by key, over all members of a group."""

    def __init__(self) -> None:
        self.news = News()
        self.starts: Counter[tuple[int, int]] = Counter()
        self.finished: Counter[tuple[int, int]] = Counter()
        self.cuts: Counter[tuple[int, int]] = Counter()
        self.overlaps: list[tuple[str, str, int, object]] = []
        """Two members, and the partition and key that they handled at the same time."""
        self.untrue: list[str] = []
        """Commits that contain a record which no handler had finished."""
        self.commits = 0
        self._busy: dict[tuple[int, object], str] = {}
        self._prefix: defaultdict[int, int] = defaultdict(int)

    def started(self, member: str, message: Message) -> None:
        """Record the start of a handler."""
        key = (message.partition, message.key)
        if (other := self._busy.get(key)) is not None:
            self.overlaps.append((other, member, *key))
        self._busy[key] = member
        self.starts[message.partition, message.offset] += 1

    def ended(self, message: Message, *, finished: bool) -> None:
        """Record the end or the cancellation of a handler."""
        self._busy.pop((message.partition, message.key), None)
        at = (message.partition, message.offset)
        (self.finished if finished else self.cuts)[at] += 1
        self.news.tell()

    async def have_finished(self, count: int) -> None:
        """Wait until the handlers of this number of records have finished."""
        await self.news.until(lambda: len(self.finished) == count)

    def check(self, frame: Frame) -> None:
        """Compare a commit with the handlers finished when it is sent."""
        if not is_commit(frame):
            return
        self.commits += 1
        for partition, (position, text) in commit_of(frame).positions.items():
            ranges = [(self._finished_before(partition), position), *decode(position, text)]
            for first, end in ranges:
                for offset in range(first, end):
                    if not self.finished[partition, offset]:
                        self.untrue.append(f"{partition}: {position}, {text!r} has {offset}")

    def _finished_before(self, partition: int) -> int:
        offset = self._prefix[partition]
        while self.finished[partition, offset]:
            offset += 1
        self._prefix[partition] = offset
        return offset
