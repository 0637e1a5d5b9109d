"""PostgreSQL: names, DSNs, connections and errors."""
