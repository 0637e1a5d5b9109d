"""Sends events at a given rate and prints the results. Usage: python ingest_load.py URL RATE
SECONDS [--first-id N].
"""

import argparse
import asyncio
from collections import Counter

import httpx

import sluicegate

CLOCK = sluicegate.batcher.LoopClock()
NO_ANSWER = 0


async def send(client: httpx.AsyncClient, number: int) -> int:
    """Post one event; return the status, or `NO_ANSWER`."""
    try:
        answer = await client.post("/events", json={"id": number, "action": "login"})
    except httpx.TransportError:
        return NO_ANSWER
    return answer.status_code


async def load(url: str, rate: float, seconds: float, first_id: int = 0) -> Counter[int]:
    """Send at the given times, even while earlier events are unanswered: a slow service does not
    slow its users down.
    """
    statuses: Counter[int] = Counter()

    async def one(number: int) -> None:
        statuses[await send(client, number)] += 1

    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, limits=unlimited, timeout=10.0) as client,
        asyncio.TaskGroup() as group,
    ):
        started = CLOCK.now()
        for index in range(round(rate * seconds)):
            await CLOCK.sleep(max(0.0, started + index / rate - CLOCK.now()))
            group.create_task(one(first_id + index))
    return statuses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("rate", type=float, help="events per second")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--first-id", type=int, default=0)
    options = parser.parse_args()
    statuses = asyncio.run(load(options.url, options.rate, options.seconds, options.first_id))
    for status, count in sorted(statuses.items()):
        print(f"{status or 'no answer'}: {count} ({count / statuses.total():.1%})")


if __name__ == "__main__":
    main()
