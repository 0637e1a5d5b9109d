"""Sends numbered events to the gRPC service, as a stream. Usage: python grpc_send.py ADDRESS COUNT
[--first-id N].
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import ingest_pb2
import ingest_pb2_grpc
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status

import sluicegate

CLOCK = sluicegate.batcher.LoopClock()
DEADLINE = 10.0  # seconds for one call
PAUSE = 1.0  # seconds before a retry, unless the service suggests another value
AGAIN = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # with a `RetryInfo`
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,  # by the service, as it stopped
    grpc.StatusCode.DEADLINE_EXCEEDED,  # perhaps stored; safe to send again, because of the id
)


# --8<-- [start:details]
def details_of(error: Any, kind: type[Any]) -> Any:
    """Return the first detail of this type in the error's status; `None` without one."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        found = kind()
        if detail.Unpack(found):
            return found
    return None


# --8<-- [end:details]


def pause_after(error: Any) -> float | None:
    """Return the seconds before a retry; `None` if no retry helps."""
    info = details_of(error, RetryInfo)
    if info is not None:
        return float(info.retry_delay.ToTimedelta().total_seconds())
    # gRPC's own RESOURCE_EXHAUSTED, as for a too large message, has no RetryInfo.
    is_full = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return PAUSE if error.code() in AGAIN and not is_full else None


# --8<-- [start:all]
async def store_all(stub: Any, events: Sequence[Any]) -> None:
    """Store all events; after an error continue at the first that is not known to be stored."""
    first = 0
    while first < len(events):
        rest: Iterator[Any] = iter(events[first:])
        try:
            # In a thread: a `grpc.aio` client may report INTERNAL for a stream that the service ends
            # while it sends, and then the details are lost.
            answer = await asyncio.to_thread(stub.StoreAll, rest, timeout=DEADLINE)
            first += answer.count
        except grpc.RpcError as error:
            stored = details_of(error, ingest_pb2.Stored)
            first += stored.count if stored else 0
            pause = pause_after(error)
            if pause is None:
                raise
            await CLOCK.sleep(pause)


# --8<-- [end:all]


async def send(address: str, count: int, first_id: int) -> None:
    events = [ingest_pb2.Event(id=first_id + index, action="login") for index in range(count)]
    with grpc.insecure_channel(address) as channel:
        await store_all(ingest_pb2_grpc.IngestStub(channel), events)
    print(f"{count} stored")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("count", type=int)
    parser.add_argument("--first-id", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(send(options.address, options.count, options.first_id))


if __name__ == "__main__":
    main()
