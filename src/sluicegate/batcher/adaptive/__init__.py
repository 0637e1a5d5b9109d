"""Adaptive concurrency and batch size."""
