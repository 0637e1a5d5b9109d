"""Rows made from items and from Arrow columns."""
