"""Events over gRPC into PostgreSQL, one by one or as a stream. Usage:
python grpc_ingest.py DSN [options].
"""

import argparse
import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import grpc
import ingest_pb2
import ingest_pb2_grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

import sluicegate
from sluicegate import Outcome, Receipt
from sluicegate.postgres import PostgresSink

TABLE = "CREATE TABLE IF NOT EXISTS events (id bigint PRIMARY KEY, action text NOT NULL)"
SHARE = 0.8  # of the client's remaining time; the rest is for the answer to reach it
LONGEST = 30.0  # seconds that a call of one event may wait
WINDOW = 1000  # events of one stream that wait for their outcome, so it cannot fill the ledger
GRACE = 5.0  # seconds that open calls have at a shutdown; more than a write takes
LARGEST_MESSAGE = 16 * 1024
MOST_CALLS = 5_000  # at once; each one keeps a message in memory

Event = tuple[int, str]
logger = logging.getLogger("ingest")


class Invalid(Exception):
    """The table would refuse the event."""


class Closing(Exception):
    """The rest of a stream is not read, because the service shuts down."""


class OutOfTime(TimeoutError):
    """The rest of a stream is not read, because the client's deadline is near."""


# -- calls -----------------------------------------------------------------------------------------


class Ingest:
    """The service of `ingest.proto`."""

    def __init__(self, batcher: sluicegate.Batcher[Event]) -> None:
        self.batcher = batcher
        self.closing = False
        self.reading: set[asyncio.Timeout] = set()

    # --8<-- [start:store]
    async def Store(self, request: Any, context: Any) -> Any:  # noqa: N802  # a name of the .proto
        try:
            left = time_left(context)
            wait = LONGEST if left is None else min(left, LONGEST)
            await self.batcher.deliver(event_of(request), timeout=wait)
        except (Invalid, sluicegate.SluicegateError) as error:
            await refuse(context, error)
        return ingest_pb2.Stored(count=1)

    # --8<-- [end:store]

    # --8<-- [start:stream]
    async def StoreAll(self, requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: N802
        stored = 0
        pending: deque[Receipt] = deque()
        failure: Exception | None = None
        try:
            async with self.reading_for(time_left(context)) as scope:
                async for request in requests:
                    while pending and (pending[0].done or len(pending) >= WINDOW):
                        await pending[0]
                        pending.popleft()
                        stored += 1
                    # Waits while the ledger is full. The next event is not read meanwhile.
                    room = share_of(scope)
                    pending.append(await self.batcher.submit(event_of(request), timeout=room))
        except (Invalid, Closing, OutOfTime, sluicegate.SluicegateError) as error:
            failure = error
        try:
            async with asyncio.timeout(time_left(context)):
                for receipt in pending:
                    await receipt
                    stored += 1
        except (TimeoutError, sluicegate.ItemFailed) as earlier:
            failure = earlier
        if failure:
            await refuse(context, failure, ingest_pb2.Stored(count=stored))
        return ingest_pb2.Stored(count=stored)

    # --8<-- [end:stream]

    @contextlib.asynccontextmanager
    async def reading_for(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """End the block after this time with `OutOfTime`, or with `Closing` once the service
        closes.
        """
        try:
            async with asyncio.timeout(0 if self.closing else seconds) as scope:
                self.reading.add(scope)
                try:
                    yield scope
                finally:
                    self.reading.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise
            if self.closing:
                raise Closing("shutting down") from None
            raise OutOfTime("the rest of the stream was not read in time") from None

    def close(self) -> None:
        """Stop reading streams: a client may keep one open for days."""
        self.closing = True
        for scope in self.reading:
            if not scope.expired():
                scope.reschedule(0)


def event_of(request: Any) -> Event:
    """Check an event. In proto3 an absent number is 0, and an absent text is empty."""
    if request.id <= 0:
        raise Invalid("id must be positive")
    if not request.action or "\0" in request.action:
        raise Invalid("action must be a text without NUL")
    return request.id, request.action


def time_left(context: Any) -> float | None:
    """Return the seconds that a call may still wait; `None` if the client has set no deadline."""
    left: float | None = context.time_remaining()
    return None if left is None else max(0.0, left * SHARE)


def share_of(scope: asyncio.Timeout) -> float | None:
    """Return the seconds that one event may wait for room: it ends before the whole block does."""
    ends = scope.when()
    return None if ends is None else max(0.0, ends - asyncio.get_running_loop().time()) * SHARE


# -- errors ----------------------------------------------------------------------------------------


def code_of(error: Exception) -> grpc.StatusCode:
    """Return the status of an event that is not known to be stored."""
    match error:
        case Invalid() | sluicegate.errors.ItemTooLarge():
            return grpc.StatusCode.INVALID_ARGUMENT
        case sluicegate.AddTimeout():  # `LedgerFull` is one
            return grpc.StatusCode.RESOURCE_EXHAUSTED
        case sluicegate.errors.BatcherBroken():
            return grpc.StatusCode.INTERNAL  # no retry helps
        case Closing() | sluicegate.ClosedError():
            return grpc.StatusCode.UNAVAILABLE
        case TimeoutError():  # `DeliverTimeout` is one: accepted, and still written
            return grpc.StatusCode.DEADLINE_EXCEEDED
        case sluicegate.ItemFailed(outcome=Outcome.UNKNOWN):  # a write was cut off
            return grpc.StatusCode.DEADLINE_EXCEEDED
        case sluicegate.ItemFailed(__cause__=sluicegate.PermanentError()):
            return grpc.StatusCode.INVALID_ARGUMENT
        case sluicegate.ItemFailed():  # the attempts are used up, or the process ends
            return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.INTERNAL


async def refuse(context: Any, error: Exception, *details: Any) -> None:
    """End the call with the error's status and these details; raises."""
    code = code_of(error)
    status = Status(code=code.value[0], message=text_of(code, error))
    for detail in details:
        status.details.add().Pack(detail)
    if isinstance(error, sluicegate.AddTimeout):
        pause = Duration()
        pause.FromMilliseconds(round(error.retry_after * 1000))
        status.details.add().Pack(RetryInfo(retry_delay=pause))
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)


def text_of(code: grpc.StatusCode, error: Exception) -> str:
    """Describe the error to a client. Errors of the database stay in the log of the service."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and not isinstance(error, OutOfTime):
        if isinstance(error, sluicegate.ItemFailed):
            return "a write was cut off; the event may be stored"
        return "accepted, and not stored in time; the event is still written"
    if isinstance(error, sluicegate.ItemFailed):
        is_refused = code is grpc.StatusCode.INVALID_ARGUMENT
        return "the table refuses the event" if is_refused else "the event was not stored"
    return str(error)


# -- the process -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(batcher: sluicegate.Batcher[Event], address: str) -> AsyncIterator[Any]:
    """Serve until the block ends; then accept no more calls, finish the open ones, and return."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", LARGEST_MESSAGE),
            ("grpc.so_reuseport", 0),  # a second server at this address is an error
        ],
        maximum_concurrent_rpcs=MOST_CALLS,
    )
    service = Ingest(batcher)
    ingest_pb2_grpc.add_IngestServicer_to_server(service, server)
    port = server.add_insecure_port(address)
    await server.start()
    logger.info("listening on %s:%d", address.rpartition(":")[0], port)
    try:
        yield server
    finally:
        service.close()
        await server.stop(GRACE)


async def serve(batcher: sluicegate.Batcher[Event], dsn: str, address: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE)
    await connection.close()
    # Left from the inside out: the server stops, so no call can add; then the batcher drains; then
    # it closes the sink.
    async with batcher, serving(batcher, address) as server:
        await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("--address", default="127.0.0.1:50051")
    parser.add_argument("--max-items", type=int, default=500)
    parser.add_argument("--max-pending-items", type=int, default=10_000)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sink = sluicegate.stack(
        PostgresSink(options.dsn, table="events", columns=("id", "action"), on_conflict="ignore"),
        sluicegate.Timeout(5.0),
        sluicegate.Retry(attempts=5),
    )
    limits = sluicegate.Limits(
        max_items=options.max_items, max_delay=0.05, max_pending_items=options.max_pending_items
    )
    batcher: sluicegate.Batcher[Event] = sluicegate.Batcher(
        sink, name="ingest", limits=limits, shutdown_deadline=15.0
    )
    sluicegate.run(serve(batcher, options.dsn, options.address))  # exits with 1 if events were lost


if __name__ == "__main__":
    main()
