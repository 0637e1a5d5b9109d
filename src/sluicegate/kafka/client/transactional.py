"""A producer whose records and offsets commit together, in Kafka transactions.

1. A transactional id has one owner. `fence` makes a producer the owner: it ends the open
   transaction of the previous owner, and every later request of that owner is refused.
2. A broker's partition joins the transaction before its first batch. Offsets of a group join it
   last.
3. A request without an answer may still arrive after the end of its transaction, and would take
   effect in the next one. So after such a request the producer is *in doubt*: it ends its
   transaction by taking a new epoch (`recover`); all earlier requests are then refused.
4. Any request for a new epoch succeeds, even from an earlier owner. So `recover` first sends a
   request that is refused for earlier owners. If another owner claims the id in between, its
   transaction is aborted and it must claim again: this costs time, but nothing is lost.
5. A request for a new epoch without an answer may have taken effect, and the broker would take its
   sender for an earlier owner. So the next `recover` repeats it, without the request before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from aiokafka import errors as kafka
from aiokafka.client import CoordinationType
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from ..._core.clock import LOOP_CLOCK
from ..._core.errors import UnavailableError, UnknownOutcomeError
from ..._core.source import Position, TopicPartition
from .answers import (
    FENCED,
    Attempted,
    Failed,
    Stored,
    result_of,
    transaction_error,
    unanswered_error,
    unsent_result,
)
from .coordinator import Coordinator, CoordinatorRefused, StableOffsetFetch, offsets_in
from .producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from .answers import Produced
    from .coordinator import CoordinatorAnswer
    from .options import ProducerOptions
    from .producer import SealedRecords

T = TypeVar("T")

_NOT_ATTEMPTED = 55
_UNKNOWN_OFFSET = -1
_PATIENCE = 3
"""Time limit of a request with all its attempts, in request timeouts."""


class TransactionalProducer(Producer):
    """The owner of a transactional id, until another owner claims it. Its client is shared."""

    def __init__(
        self, options: ProducerOptions, client: Any, transactional_id: str, group: str
    ) -> None:
        super().__init__(options, client)
        self._name = self._transactional_id = transactional_id
        self._group = group
        self._transactions = Coordinator(client, CoordinationType.TRANSACTION, transactional_id)
        self._offsets = Coordinator(client, CoordinationType.GROUP, group)
        self._joined: set[TopicPartition] = set()
        self._began_at: float | None = None
        self._in_doubt = False
        self._is_claiming = False
        self._stored: dict[TopicPartition, int] = {}

    @property
    def in_doubt(self) -> bool:
        """Whether a request sent earlier may still take effect; `recover` ends this state."""
        return self._in_doubt

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and is not known to have ended."""
        return self._began_at is not None

    # -- ownership ---------------------------------------------------------------------------------

    async def fence(self) -> None:
        """Take ownership of the id, with a new epoch. Raises sink errors.

        Suspends while a transaction of the previous owner is completed or aborted.
        """
        self._is_claiming = True
        request = InitProducerIdRequest(self._name, self._options.transaction_timeout_ms)
        answer = await self._ask(self._transactions, request, _code, "begin a transaction")
        if answer.code:
            raise self._error(answer.code, "claim the transactional id")
        self._begin_as((answer.body.producer_id, answer.body.producer_epoch))
        self._reset()
        self._in_doubt = self._is_claiming = False

    async def recover(self) -> None:
        """End any open transaction, so that no earlier request takes effect later.

        Raises `PositionLost` if another owner has claimed the id, and sink errors.
        """
        if not self._is_claiming:
            code = await self._join_offsets("end a transaction whose outcome is unknown")
            if code and code != kafka.InvalidProducerIdMapping.errno:
                raise self._error(code, "end a transaction whose outcome is unknown")
        await self.fence()

    # -- within a transaction ----------------------------------------------------------------------

    async def produce(
        self, batches: Sequence[SealedRecords], answers: dict[SealedRecords, Produced]
    ) -> None:
        """Send each batch to its leader, in the open transaction; the first batch begins it."""
        new = sorted({each.partition for each in batches} - self._joined)
        failed = await self._join(new) if new else {}
        if failed:
            other = result_of(_NOT_ATTEMPTED, "the transaction", -1, {}, "")
            answers.update((each, failed.get(each.partition, other)) for each in batches)
            return
        was, self._in_doubt = self._in_doubt, True
        await super().produce(batches, answers)
        unknown = [
            each for each in answers.values() if isinstance(each, Failed) and each.is_unknown
        ]
        self._in_doubt = was or bool(unknown)
        for each in batches:
            if isinstance(found := answers.get(each), Stored):
                self._stored[each.partition] = found.offset

    def stored_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset of the first record in the last batch stored in a partition; `None` if
        the broker has not returned it.
        """
        offset = self._stored.get(partition, _UNKNOWN_OFFSET)
        return None if offset == _UNKNOWN_OFFSET else offset

    async def _join(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Produced]:
        """Add these partitions to the transaction; return an error for each that failed."""
        self._begin()
        request = AddPartitionsToTxnRequest(
            self._name,
            *self._id,
            _by_topic((each, each.partition) for each in partitions),
        )
        try:
            answer = await self._ask(self._transactions, request, _worst_code, "add partitions")
        except UnavailableError as error:
            return {each: unsent_result(str(each), error) for each in partitions}
        if not answer.code:
            self._joined.update(partitions)
            return {}
        codes = _codes(answer.body)
        return {
            each: result_of(codes.get(each) or _NOT_ATTEMPTED, str(each), -1, {}, "")
            for each in partitions
        }

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit the sent records together with these offsets of the group.

        Raises `PositionLost` if another owner has claimed the id (nothing is committed),
        `UnknownOutcomeError` if it may be committed, and other errors if it is not.
        """
        what = f"store offsets of the group {self._group!r}"
        code = await self._join_offsets(what)
        if not code:
            offsets = [
                (each, (each.partition, at.offset, at.metadata))
                for each, at in sorted(positions.items())
            ]
            request = TxnOffsetCommitRequest(self._name, self._group, *self._id, _by_topic(offsets))
            code = (await self._ask(self._offsets, request, _worst_code, what)).code
        if code:
            raise self._error(code, what)
        await self._end(is_commit=True)

    async def abort(self) -> None:
        """Abort the open transaction. Raises as `recover` does."""
        if self._in_doubt:
            await self.recover()
        elif self.is_open:
            await self._end(is_commit=False)

    async def _end(self, *, is_commit: bool) -> None:
        request = EndTxnRequest(self._name, *self._id, is_commit)
        what = "commit" if is_commit else "abort"
        try:
            answer = await self._ask(self._transactions, request, _code, what)
        except UnavailableError as error:
            raise UnknownOutcomeError(str(error)) from error
        if not answer.code:
            self._reset()
            return
        refused = self._error(answer.code, what)
        self._in_doubt = True
        if answer.code in FENCED and answer.is_only:
            raise refused
        raise UnknownOutcomeError(str(refused)) from refused

    async def _join_offsets(self, what: str) -> int:
        """Add the group's offsets to the transaction; return the error code."""
        self._begin()
        request = AddOffsetsToTxnRequest(self._name, *self._id, self._group)
        return (await self._ask(self._transactions, request, _code, what)).code

    def _begin(self) -> None:
        if self._began_at is None:
            self._began_at = LOOP_CLOCK.now()

    def _reset(self) -> None:
        self._joined.clear()
        self._began_at = None

    # -- requests ----------------------------------------------------------------------------------

    async def positions(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Return the group's existing offsets of these partitions. Raises sink errors.

        Waits until no transaction can change them.
        """
        request = StableOffsetFetch(self._group, _by_topic((p, p.partition) for p in partitions))
        what, was = f"read offsets of the group {self._group!r}", self._in_doubt
        try:
            answer = await self._ask(self._offsets, request, _fetch_code, what)
        finally:
            self._in_doubt = was  # reading has no effect
        if answer.code:
            raise self._error(answer.code, what)
        return {
            TopicPartition(each.topic, each.partition): Position(each.offset, each.metadata)
            for each in offsets_in(answer.body)
            if each.offset != _UNKNOWN_OFFSET
        }

    async def _ask(
        self, whom: Coordinator, request: Any, code_of: Callable[[Any], int], what: str
    ) -> CoordinatorAnswer:
        """Return the answer of a coordinator. Raises `UnavailableError` without one."""
        was, self._in_doubt = self._in_doubt, True
        try:
            answer = await whom.ask(request, code_of, _PATIENCE * self._options.request_timeout)
        except CoordinatorRefused as refused:
            self._in_doubt = was
            raise self._error(refused.code, what) from refused
        except (TimeoutError, kafka.KafkaError, OSError) as error:
            raise unanswered_error(error, self._attempted(what)) from error
        self._in_doubt = was or not answer.is_only
        return answer

    def _attempted(self, what: str) -> Attempted:
        return Attempted(what, self._name, self._group)

    def _error(self, code: int, what: str) -> Exception:
        return transaction_error(code, self._attempted(what))


def _by_topic(pairs: Iterable[tuple[TopicPartition, T]]) -> list[tuple[str, list[T]]]:
    """Group the data of partitions by topic."""
    topics: dict[str, list[T]] = {}
    for partition, told in pairs:
        topics.setdefault(partition.topic, []).append(told)
    return list(topics.items())


def _code(response: Any) -> int:
    code: int = response.error_code
    return code


def _codes(response: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, partition): code
        for topic, partitions in response.errors
        for partition, code in partitions
    }


def _worst_code(response: Any) -> int:
    """Return the first real error of a partition, before those of partitions not attempted."""
    codes = {*_codes(response).values()} - {0}
    return min(codes - {_NOT_ATTEMPTED} or codes, default=0)


def _fetch_code(response: Any) -> int:
    codes = {response.error_code, *(each.code for each in offsets_in(response))} - {0}
    return min(codes, default=0)
