"""Like `benchmarks.programs.workload`, with the ways to write to topics of a broker: `python -m
benchmarks.kafka.programs.produce BOOTSTRAP`.
"""

from __future__ import annotations

import sys

from ...programs.workload import main
from ..producer_workloads import workloads

if __name__ == "__main__":
    main(workloads(sys.argv[1]))
