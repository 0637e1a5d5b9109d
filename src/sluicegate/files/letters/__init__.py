"""Dead letters in a file."""
