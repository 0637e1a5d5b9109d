"""Events to an HTTP endpoint with a result for each event. Usage: TOKEN=... python
events_to_http.py https://host/v1/events
"""

import json
import os
import sys

import sluicegate
from sluicegate.http import HttpAccess, HttpResponse, HttpSink

Event = dict[str, object]


# --8<-- [start:parse]
def parse(response: HttpResponse, batch: sluicegate.Batch[Event]) -> sluicegate.WriteResult:
    """Read the server's result for each event: accepted, or the reason why not."""
    answers = json.loads(response.body)["items"]
    errors = [None if each["ok"] else sluicegate.PermanentError(each["why"]) for each in answers]
    return sluicegate.WriteResult.from_outcomes(batch, errors)


# --8<-- [end:parse]


async def main(url: str, events: int) -> sluicegate.batcher.ShutdownReport[Event] | None:
    # --8<-- [start:sink]
    sink = sluicegate.stack(
        HttpSink(
            HttpAccess(url, auth=lambda: f"Bearer {os.environ['TOKEN']}"),
            compression="gzip",
            idempotency_header="Idempotency-Key",
            parse=parse,
        ),
        sluicegate.Timeout(5.0),
        sluicegate.Retry(attempts=5),
    )
    # --8<-- [end:sink]
    async with sluicegate.Batcher(sink, name="events") as batcher:
        for number in range(events):
            await batcher.add({"id": number, "action": "login"})
        await batcher.flush()
    print(batcher.report)
    return batcher.report


if __name__ == "__main__":
    sluicegate.run(main(sys.argv[1], 10_000))
