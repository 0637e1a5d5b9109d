"""Handling messages in batches: forming them, and what the results of one do to its messages."""
