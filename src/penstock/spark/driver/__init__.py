"""Decisions on the driver: columns and partitions, the hash of rows, the trial of the sink."""
