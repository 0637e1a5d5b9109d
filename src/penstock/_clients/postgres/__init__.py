"""PostgreSQL: error tables and addresses."""
