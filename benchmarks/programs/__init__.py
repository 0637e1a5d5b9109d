"""Small programs that a case runs in a process of its own."""
