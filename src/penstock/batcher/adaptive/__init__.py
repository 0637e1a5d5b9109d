"""Adaptive control: how many workers, and how large a batch."""
