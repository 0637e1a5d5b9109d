"""Events to an HTTP endpoint with a result for each event. Usage: TOKEN=... python
events_to_http.py https://host/v1/events
"""

import json
import os
import sys

import penstock
from penstock.sinks import HttpResponse, HttpSink

Event = dict[str, object]


# --8<-- [start:parse]
def parse(response: HttpResponse, batch: penstock.Batch[Event]) -> penstock.WriteResult:
    """Read the server's result for each event: accepted, or the reason why not."""
    answers = json.loads(response.body)["items"]
    errors = [None if each["ok"] else penstock.PermanentError(each["why"]) for each in answers]
    return penstock.WriteResult.from_outcomes(batch, errors)


# --8<-- [end:parse]


async def main(url: str, events: int) -> penstock.ShutdownReport[Event] | None:
    # --8<-- [start:sink]
    sink = penstock.stack(
        HttpSink(
            url,
            auth=lambda: f"Bearer {os.environ['TOKEN']}",
            compression="gzip",
            idempotency_header="Idempotency-Key",
            parse=parse,
        ),
        penstock.Timeout(5.0),
        penstock.Retry(attempts=5),
    )
    # --8<-- [end:sink]
    async with penstock.Batcher(sink, name="events") as batcher:
        for number in range(events):
            await batcher.add({"id": number, "action": "login"})
        await batcher.flush()
    print(batcher.report)
    return batcher.report


if __name__ == "__main__":
    penstock.run(main(sys.argv[1], 10_000))
