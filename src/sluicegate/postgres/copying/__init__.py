"""Rows and columns in the binary format of `COPY`."""
