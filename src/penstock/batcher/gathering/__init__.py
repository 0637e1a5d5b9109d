"""Gathering items into batches: decided without clock, task or I/O."""
