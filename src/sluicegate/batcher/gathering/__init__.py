"""Gathering of items into batches: decisions without clock, task or I/O."""
