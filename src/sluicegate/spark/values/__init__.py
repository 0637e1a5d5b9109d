"""Rows between Spark and a sink."""
