"""Dead letters as objects."""
