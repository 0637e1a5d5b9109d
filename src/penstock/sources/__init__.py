"""Where a consumer reads from: a folder per kind of source."""
