"""Documents to Elasticsearch or OpenSearch. Usage: python documents_to_search.py
https://user:password@host:9200
"""

import sys

import sluicegate
from sluicegate.http import ElasticsearchSink

Document = dict[str, object]


async def main(url: str, documents: int) -> sluicegate.batcher.ShutdownReport[Document] | None:
    sink = sluicegate.stack(
        ElasticsearchSink(url, index="events", id="id"),
        sluicegate.Timeout(5.0),
        sluicegate.Retry(attempts=5),
    )
    async with sluicegate.Batcher(sink, name="events") as batcher:
        for number in range(documents):
            await batcher.add({"id": number, "action": "login"})
        receipt = await batcher.submit({"id": documents, "action": "logout"})
        await receipt
        print("the server says:", receipt.detail)
    print(batcher.report)
    return batcher.report


if __name__ == "__main__":
    sluicegate.run(main(sys.argv[1], 10_000))
