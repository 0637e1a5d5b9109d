"""Like `benchmarks.programs.workload`, with all workloads of a comparison."""

from __future__ import annotations

from ..end_to_end import COMPARED
from .workload import main

if __name__ == "__main__":
    main(COMPARED)
