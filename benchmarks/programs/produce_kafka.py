"""Like `benchmarks.programs.workload`, with the ways to write to topics of a broker: `python -m
benchmarks.programs.produce_kafka BOOTSTRAP`.
"""

from __future__ import annotations

import sys

from ..kafka.producer_workloads import workloads
from .workload import main

if __name__ == "__main__":
    main(workloads(sys.argv[1]))
