"""The broker that coordinates a transaction or a group: found, asked, and found again.

A request is sent again while its coordinator is being elected, loads, or does not answer, until its
time is over. An unanswered try may still arrive, after the answer of a later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka import errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.coordination import FindCoordinatorRequest

from ..._core.clock import LOOP_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE = 0.1
"""Seconds before another try; aiokafka's `retry_backoff_ms`."""
_SHORT_PAUSE = 0.02
"""While an earlier transaction of the same id is being completed, which takes milliseconds."""
UNSTABLE_OFFSETS = 88
"""UNSTABLE_OFFSET_COMMIT: an open transaction may change an offset."""
_CONCURRENT = {kafka.ConcurrentTransactions.errno, UNSTABLE_OFFSETS}
_ELSEWHERE = {
    kafka.CoordinatorNotAvailableError.errno,
    kafka.NotCoordinatorError.errno,
    kafka.RequestTimedOutError.errno,
}
_LATER = {
    kafka.CoordinatorLoadInProgressError.errno,
    kafka.UnknownTopicOrPartitionError.errno,
}


_PASSING = _CONCURRENT | _ELSEWHERE | _LATER
_UNANSWERED = (TimeoutError, kafka.KafkaError, OSError)


class CoordinatorRefused(Exception):  # its code says what it is
    """No coordinator is told, for this error code of a broker."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class CoordinatorAnswer(NamedTuple):
    """A coordinator's last answer."""

    code: int
    """Its error; 0: none."""
    body: Any
    is_only: bool
    """Whether all tries before were answered, too."""


class Coordinator:
    """Sends requests of one transactional id, or of one group, to its coordinator."""

    def __init__(self, client: Any, kind: int, name: str) -> None:
        self._client = client
        self._kind = kind
        self._name = name
        self._node: int | None = None

    async def ask(
        self, request: Any, code_of: Callable[[Any], int], within: float
    ) -> CoordinatorAnswer:
        """Send a request until its answer is no passing error, or the time is over.

        Raises the client's error if the last try had no answer. Suspends for `within` seconds and
        one request timeout, at most. A cancelled request may still arrive.
        """
        give_up_at = LOOP_CLOCK.now() + within
        is_only = True
        while True:
            try:
                response = await self._client.send(
                    await self._find(), request, group=ConnectionGroup.COORDINATION
                )
                code = code_of(response)
                if code not in _PASSING or LOOP_CLOCK.now() >= give_up_at:
                    return CoordinatorAnswer(code, response, is_only)
                self._node = None if code in _ELSEWHERE else self._node
                await LOOP_CLOCK.sleep(_SHORT_PAUSE if code in _CONCURRENT else PAUSE)
            except _UNANSWERED as error:
                self._node = None
                is_only = is_only and isinstance(error, kafka.NodeNotReadyError)
                if LOOP_CLOCK.now() >= give_up_at:
                    raise
                await LOOP_CLOCK.sleep(PAUSE)
                await self._client.force_metadata_update()

    async def _find(self) -> int:
        """The coordinator's node. Raises the client's error, or the broker's."""
        if self._node is not None:
            return self._node
        node = self._client.get_random_node()
        if node is None:
            raise kafka.NodeNotReadyError("no broker is known")
        try:
            request = FindCoordinatorRequest(self._name, self._kind)
            answer = await self._client.send(node, request)
        except _UNANSWERED as error:  # asking for it has no effect
            raise kafka.NodeNotReadyError(f"no broker tells the coordinator ({error!r})") from error
        if answer.error_code in _PASSING:
            why = kafka.for_code(answer.error_code)()
            raise kafka.NodeNotReadyError(f"there is no coordinator yet ({why!r})") from why
        if answer.error_code:
            raise CoordinatorRefused(answer.error_code)
        found: int = answer.coordinator_id
        self._node = found
        return found
