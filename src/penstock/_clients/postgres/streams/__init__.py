"""Reading a log in PostgreSQL: its messages, and the subscriptions' state."""
