"""Sluicegate compared with its peers, in one run: `python -m benchmarks --help`."""
