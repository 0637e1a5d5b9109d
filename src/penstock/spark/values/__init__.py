"""Rows between Spark and a sink: chunks, column types, time zone, pickling."""
