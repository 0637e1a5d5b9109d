"""Statements for the rows of one batch: the fast path."""
