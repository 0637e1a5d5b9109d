"""DataFrames into PostgreSQL without Penstock."""
