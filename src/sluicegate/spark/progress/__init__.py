"""Counts of a write, its progress bar, and the page of its report."""
