"""Like `benchmarks.programs.workload`, with the workloads of the consumer."""

from __future__ import annotations

from ..consuming import WORKLOADS
from .workload import main

if __name__ == "__main__":
    main(WORKLOADS)
