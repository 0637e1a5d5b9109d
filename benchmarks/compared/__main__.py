"""Kafka consumers compared on an embedded broker: `python -m benchmarks.compared [--only NAME]
[SITUATION ...]` prints what each does. Needs Java, Maven, and the peers of README.md.
"""

from __future__ import annotations

import argparse

from sluicegate.testing import embedded_kafka

from .peers import ALL
from .scene import Scene
from .situations import SITUATIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("situations", nargs="*", metavar="SITUATION", help=", ".join(SITUATIONS))
    parser.add_argument("--only", action="append", help="the name of a consumer")
    chosen = parser.parse_args()
    peers = [peer for peer in ALL if peer.name in (chosen.only or {each.name for each in ALL})]
    with embedded_kafka() as broker:
        for name in chosen.situations or SITUATIONS:
            partitions, situation = SITUATIONS[name]
            print(f"\n{name}: {situation.__doc__}", flush=True)
            for peer in peers:
                if not peer.needs.exists():
                    print(f"  {peer.name:18} is not installed: no {peer.needs}", flush=True)
                    continue
                topic = f"{name}-{ALL.index(peer)}"
                broker.create_topic(topic, partitions=partitions)
                with Scene(broker, peer, topic) as scene:
                    print(f"  {peer.name:18} {situation(scene)}", flush=True)


if __name__ == "__main__":
    main()
