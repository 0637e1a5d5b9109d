"""Small programs that a case runs in a separate process."""
