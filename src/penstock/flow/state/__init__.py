"""State of partitions that is kept together with their positions."""
