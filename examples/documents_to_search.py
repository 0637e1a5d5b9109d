"""Documents to Elasticsearch or OpenSearch. Usage: python documents_to_search.py
https://user:password@host:9200
"""

import sys

import penstock
from penstock.sinks import ElasticsearchSink

Document = dict[str, object]


async def main(url: str, documents: int) -> penstock.ShutdownReport[Document] | None:
    sink = penstock.stack(
        ElasticsearchSink(url, index="events", id="id"),
        penstock.Timeout(5.0),
        penstock.Retry(attempts=5),
    )
    async with penstock.Batcher(sink, name="events") as batcher:
        for number in range(documents):
            await batcher.add({"id": number, "action": "login"})
        receipt = await batcher.submit({"id": documents, "action": "logout"})
        await receipt
        print("the server says:", receipt.detail)
    print(batcher.report)
    return batcher.report


if __name__ == "__main__":
    penstock.run(main(sys.argv[1], 10_000))
