"""Ordered consumption: every record handled in the order of its key, positions that never lie."""
