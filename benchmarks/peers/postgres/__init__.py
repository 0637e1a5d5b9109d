"""Rows into PostgreSQL as people write them by hand, a file for each client library.

Each way is a context manager that opens one connection and gives a function that writes a batch of
rows, in a transaction of its own. Clients that block are called as they are: nothing else runs in
the loop.
"""
