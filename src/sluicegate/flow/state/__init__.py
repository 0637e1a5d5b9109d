"""The state of partitions, stored together with their positions."""
