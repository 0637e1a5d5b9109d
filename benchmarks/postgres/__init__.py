"""The parts of the cases on PostgreSQL.

`by_*.py` write rows by common hand-written code, a file for each client library. Each way is a
context manager that opens one connection and provides a function that writes a batch of rows in its
own transaction. Blocking clients are called directly: nothing else runs in the loop.
"""
