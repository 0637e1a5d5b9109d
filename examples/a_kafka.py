"""A Kafka broker for trying the examples, until Ctrl-C. Usage: python a_kafka.py TOPIC [...]; each
topic is created with three partitions.

SIGHUP makes it crash and start again.
"""

import os
import signal
import sys

from sluicegate.testing import embedded_kafka


def main(topics: list[str]) -> None:
    with embedded_kafka() as broker:
        for topic in topics:
            broker.create_topic(topic, partitions=3)
        signals = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        print(
            f"export KAFKA={broker.bootstrap}\n# to see it crash: kill -HUP {os.getpid()}",
            flush=True,
        )
        while signal.sigwait(signals) == signal.SIGHUP:
            broker.kill()
            print("# killed with SIGKILL", flush=True)
            broker.start()
            print("# up again", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
