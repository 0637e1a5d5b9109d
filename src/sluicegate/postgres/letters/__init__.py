"""Dead letters in a table."""
