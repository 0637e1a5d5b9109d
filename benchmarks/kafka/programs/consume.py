"""Like `benchmarks.programs.workload`, with the ways to consume topics of a broker: `python -m
benchmarks.kafka.programs.consume BOOTSTRAP`.
"""

from __future__ import annotations

import logging
import sys

from ...programs.workload import main
from ..workloads import workloads

if __name__ == "__main__":
    logging.disable(
        logging.CRITICAL
    )  # of the peers, since their log lines would count as their time
    main(workloads(sys.argv[1]))
