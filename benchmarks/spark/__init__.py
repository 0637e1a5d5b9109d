"""DataFrames into PostgreSQL without Sluicegate."""
