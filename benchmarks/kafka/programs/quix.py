"""Like `benchmarks.programs.workload`, with Quix Streams from a topic into a table: `python -m
benchmarks.kafka.programs.quix BOOTSTRAP TOPIC DSN TABLE SIZE...`.
"""

from __future__ import annotations

import sys

from ...programs.workload import main
from ..pipes.quix import workloads

if __name__ == "__main__":
    bootstrap, topic, dsn, table, *sizes = sys.argv[1:]
    main(workloads(bootstrap, topic, dsn, table, [*map(int, sizes)]))
