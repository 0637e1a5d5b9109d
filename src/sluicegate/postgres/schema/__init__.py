"""The schema of a stream log in PostgreSQL: its migrations, installation and checks."""
