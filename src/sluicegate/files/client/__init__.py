"""Append-only files of lines: locking, appending, repair, and what errors mean."""
