"""Like `benchmarks.programs.workload`, with the ways to consume topics of a broker: `python -m
benchmarks.programs.consume_kafka BOOTSTRAP`.
"""

from __future__ import annotations

import logging
import sys

from ..kafka.workloads import workloads
from .workload import main

if __name__ == "__main__":
    logging.disable(
        logging.CRITICAL
    )  # of the peers, since their log lines would count as their time
    main(workloads(sys.argv[1]))
